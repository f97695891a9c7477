// Moves a frame PAD = W/8 - 16 bytes towards its end, so that byte 80 is at the start of a word: for buses of 256 and
// 512 bits.
//
// Ports: s_* a frame, m_* the same behind PAD bytes of anything; AXI-Stream, byte 0 in the low bits.
//
// Timing: a word passes in the cycle in which it arrives. A frame whose last word has more than 16 bytes takes one
// cycle more.
//
// Theory: the shift is fixed, so it is wires and one register: the 16 low bytes of a word become the high ones above
// the rest of the previous word.
`default_nettype none

module axis_late #(
    parameter int W   = 512,
    localparam int B  = W / 8,
    localparam int R  = B - 16  // bytes that stay for the next word
) (
    input  wire          clk,
    input  wire          rst_n,
    input  wire  [W-1:0] s_tdata,
    input  wire  [B-1:0] s_tkeep,
    input  wire          s_tlast,
    input  wire          s_tvalid,
    output wire          s_tready,
    output wire  [W-1:0] m_tdata,
    output wire  [B-1:0] m_tkeep,
    output wire          m_tlast,
    output wire          m_tvalid,
    input  wire          m_tready
);
    logic [R*8-1:0] rest;
    logic   [R-1:0] rest_keep;
    logic           flush;
    wire            spills = s_tkeep[16];

    assign m_tdata  = {s_tdata[127:0], rest};
    assign m_tkeep  = flush ? {16'd0, rest_keep} : {s_tkeep[15:0], {R{1'b1}}};
    assign m_tlast  = flush | (s_tlast & ~spills);
    assign m_tvalid = flush | s_tvalid;
    assign s_tready = m_tready & ~flush;

    always_ff @(posedge clk) begin
        if (s_tvalid & s_tready) begin
            rest      <= s_tdata[W-1:128];
            rest_keep <= s_tkeep[B-1:16];
        end
        if (!rst_n) flush <= 1'b0;
        else if (m_tvalid & m_tready) flush <= ~flush & s_tlast & spills;
    end
endmodule

`default_nettype wire
