// Phases of a slot, and kinds of packets that leave.
/* verilator lint_off UNUSEDPARAM */
localparam logic [1:0] NONE = 2'd0, FILLING = 2'd1, SENT_UP = 2'd2, SUMMED = 2'd3;
localparam logic [2:0] PARTIAL = 3'd1, RESULT = 3'd2, WAITING = 3'd3, MISMATCH = 3'd4;
/* verilator lint_on UNUSEDPARAM */
