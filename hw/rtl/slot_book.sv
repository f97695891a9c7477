// The slots' contents: for each the fields of the header to be sent, and the state of its ports.
//
// Ports
//   slot_i     the slot that control reads. Its state is on phase_o, arrived_o, asked_o, resent_o, congested_o one
//              cycle later, its fields (vid_o ...) two.
//   write_*    control's writes: the state changes alone, the fields only when a packet is taken. One more entry, at
//              SLOTS, is for notices.
//   engine_*   the release engine's read of a slot: record_o, two cycles after engine_read_i, which must not be in a
//              cycle in which fields are written
//
// Timing: as above; a write is visible to a read that begins in the cycle after it. A read of a slot in the cycle in
// which it is written is undefined (no_rw_check), and control does not use it.
//
// Theory: the fields are a block memory with two read ports, each with an output register, because a block memory alone
// takes most of a cycle. Record: {resent, congested, vid, chunk, bfloat16, n_elems, marks, window_cap, missing, job,
// tree, epoch}.
`default_nettype none

module slot_book #(
    parameter int PORTS  = 4,
    parameter int SLOTS  = 32,
    parameter int RECORD = 251,
    localparam int BOOK  = 4 + 2 * PORTS,
    localparam int SB    = $clog2(SLOTS)
) (
    input  wire               clk,

    input  wire  [SB-1:0]     slot_i,
    output wire  [1:0]        phase_o,
    output wire  [PORTS-1:0]  arrived_o,
    output wire  [PORTS-1:0]  asked_o,
    output wire               resent_o,
    output wire               congested_o,
    output logic [31:0]       vid_o,
    output logic [31:0]       chunk_o,
    output logic              bf16_o,
    output logic [15:0]       n_elems_o,
    output logic [31:0]       marks_o,
    output logic [15:0]       window_cap_o,
    output logic [63:0]       missing_o,

    input  wire               write_fields_i,
    input  wire               write_book_i,
    input  wire  [SB:0]       write_at_i,
    input  wire  [RECORD-3:0] fields_i,
    input  wire  [BOOK-1:0]   book_i,

    input  wire               engine_read_i,
    input  wire  [SB:0]       engine_slot_i,
    output logic [RECORD-1:0] record_o
);
    (* ram_style = "block", no_rw_check *) logic [RECORD-3:0] fields [0:SLOTS];
    logic [BOOK-1:0]   books [0:SLOTS];
    logic [RECORD-3:0] fields_read, fields_engine;
    logic [BOOK-1:0]   book_read;
    logic [1:0]        flags_engine;
    wire  [BOOK-1:0]   book_engine = books[engine_slot_i];

    assign {phase_o, arrived_o, asked_o, resent_o, congested_o} = book_read;

    always_ff @(posedge clk) begin
        if (write_fields_i) fields[write_at_i] <= fields_i;
        if (write_book_i) books[write_at_i] <= book_i;
        fields_read <= fields[{1'b0, slot_i}];
        book_read   <= books[{1'b0, slot_i}];
        {vid_o, chunk_o, bf16_o, n_elems_o, marks_o, window_cap_o, missing_o} <= fields_read[RECORD-3:56];
        if (engine_read_i) begin
            fields_engine <= fields[engine_slot_i];
            flags_engine  <= book_engine[1:0];
        end
        record_o <= {flags_engine, fields_engine};
    end
endmodule

`default_nettype wire
