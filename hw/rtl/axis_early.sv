// Moves a frame PAD = W/8 - 16 bytes towards its start: the inverse of axis_late.
//
// Ports: s_* a frame behind PAD bytes of anything, m_* the frame; AXI-Stream, byte 0 in the low bits, without
// back-pressure of its own: m_tready reaches s_tready in the same cycle.
//
// Timing: a word leaves when the next one arrives. The rest of a frame's last word leaves with the first word of the
// next frame, or alone: one word per cycle.
//
// Theory: the 16 high bytes of a word wait for the low ones of the next.
`default_nettype none

module axis_early #(
    parameter int W   = 512,
    localparam int B  = W / 8,
    localparam int R  = B - 16  // bytes of padding
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
    logic [127:0] rest;
    logic  [15:0] rest_keep;
    logic         started, flush;
    wire          spills = s_tkeep[R];

    assign m_tdata  = {s_tdata[R*8-1:0], rest};
    assign m_tkeep  = flush ? {{R{1'b0}}, rest_keep} : {s_tkeep[R-1:0], 16'hffff};
    assign m_tlast  = flush | (s_tlast & ~spills);
    assign m_tvalid = flush | (s_tvalid & started);
    assign s_tready = m_tready | (~started & ~flush);

    always_ff @(posedge clk) begin
        if (s_tvalid & s_tready) begin
            rest      <= s_tdata[W-1:R*8];
            rest_keep <= s_tkeep[B-1:R];
        end
        if (!rst_n) begin
            started <= 1'b0;
            flush   <= 1'b0;
        end else if (s_tvalid & s_tready) begin
            started <= ~s_tlast;
            flush   <= s_tlast & spills;
        end else if (flush & m_tready) begin
            flush <= 1'b0;
        end
    end
endmodule

`default_nettype wire
