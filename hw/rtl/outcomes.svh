// Constants made from hw/rtl/registers.toml by hw/tools/registers.py.
/* verilator lint_off UNUSEDPARAM */
localparam logic [4:0]
    O_CONTRIBUTION = 5'd0,
    O_RELEASED = 5'd1,
    O_RESULT = 5'd2,
    O_ANSWERED = 5'd3,
    O_WAITING = 5'd4,
    O_MISMATCH_TOLD = 5'd5,
    O_DUPLICATE = 5'd6,
    O_MISMATCH = 5'd7,
    O_UNEXPECTED = 5'd8,
    O_TOO_OLD = 5'd9,
    O_BEYOND_WINDOW = 5'd10,
    O_TOO_LARGE = 5'd11,
    O_WRONG_DIRECTION = 5'd12,
    O_NOT_A_NEIGHBOUR = 5'd13,
    O_FUTURE_EPOCH = 5'd14,
    O_STALE_EPOCH = 5'd15,
    O_NO_LEASE = 5'd16,
    O_PAYLOAD_LENGTH = 5'd17,
    O_EMPTY_FRAGMENT = 5'd18,
    O_RESERVED_FIELD = 5'd19,
    O_BROKEN_FRAME = 5'd20;
/* verilator lint_on UNUSEDPARAM */
