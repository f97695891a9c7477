// One port's sending side: frames of the switch chip and sums of the accelerator, in turn, to the wire.
//
// Ports
//   s_*      frames from the switch chip (AXI-Stream)
//   q_*      frames with sums (AXI-Stream)
//   m_*      frames to the wire
//
// Timing: a word is sent one cycle after it was taken. m_tready reaches s_tready and q_tready in the same cycle;
// nothing else does.
//
// Theory: frames of both sides take turns; whoever waits alone is served at once.
`default_nettype none

module tx_port #(
    parameter int W  = 64,
    localparam int B = W / 8
) (
    input  wire           clk,
    input  wire           rst_n,

    input  wire  [W-1:0]  s_tdata,
    input  wire  [B-1:0]  s_tkeep,
    input  wire           s_tlast,
    input  wire           s_tvalid,
    output wire           s_tready,

    input  wire  [W-1:0]  q_tdata,
    input  wire  [B-1:0]  q_tkeep,
    input  wire           q_tlast,
    input  wire           q_tvalid,
    output wire           q_tready,

    output logic [W-1:0]  m_tdata,
    output logic [B-1:0]  m_tkeep,
    output logic          m_tlast,
    output logic          m_tvalid,
    input  wire           m_tready
);
    logic busy, ours_q;
    wire  ours   = busy ? ours_q : q_tvalid & ~(s_tvalid & ours_q);
    wire  accept = ~m_tvalid | m_tready;

    assign s_tready = accept & ~ours;
    assign q_tready = accept & ours;

    always_ff @(posedge clk) begin
        if (accept) begin
            m_tdata <= ours ? q_tdata : s_tdata;
            m_tlast <= ours ? q_tlast : s_tlast;
            m_tkeep <= ours ? q_tkeep : s_tkeep;
        end
        if (!rst_n) begin
            busy     <= 1'b0;
            ours_q   <= 1'b0;
            m_tvalid <= 1'b0;
        end else if (accept) begin
            m_tvalid <= ours ? q_tvalid : s_tvalid;
            if (ours ? q_tvalid : s_tvalid) begin
                busy   <= ~(ours ? q_tlast : s_tlast);
                ours_q <= ours;
            end
        end
    end
endmodule

`default_nettype wire
