// One port's sending side: arbitrates frames of the switch chip and sums of the accelerator.
//
// Ports
//   s_*          frames from the switch chip (AXI-Stream)
//   write_i, word_i, ..., template_*  sums and the addresses of their headers; see sum_queue
//   room_o       another sum of the largest size fits
//   m_*          frames to the wire
//
// Timing: a word of the granted side is sent one cycle after it was taken, and no cycle is lost between frames; an idle
// side waits a cycle for its grant. Of the outputs only s_tready depends combinationally on m_tready.
//
// Theory: the grant is a register and changes only between frames, to a side that waits. So frames of both sides
// alternate, a side that waits alone keeps the grant, and a word to be sent is a function of four bits: its own, that
// of the template, that of the switch chip, and the grant.
`default_nettype none

module tx_port #(
    parameter int W      = 64,
    parameter int LEASES = 16,
    parameter int DEPTH  = 512,
    parameter int NB     = 8,
    localparam int B     = W / 8,
    localparam int PAD   = (B - 80 % B) % B,
    localparam int CB    = $clog2(B),
    localparam int LB    = $clog2(LEASES),
    localparam int TB    = $clog2((42 + PAD + B - 1) / B + 1),
    localparam int VB    = $clog2(W / 32)
) (
    input  wire                 clk,
    input  wire                 rst_n,

    input  wire  [W-1:0]        s_tdata,
    input  wire  [B-1:0]        s_tkeep,
    input  wire                 s_tlast,
    input  wire                 s_tvalid,
    output wire                 s_tready,

    input  wire                 write_i,
    input  wire  [W-1:0]        word_i,
    input  wire                 first_i,
    input  wire  [NB-1:0]       words_i,
    input  wire  [CB-1:0]       count_i,
    input  wire  [LB-1:0]       lease_i,
    output wire                 room_o,

    input  wire                 template_write_i,
    input  wire  [LB+TB+VB-1:0] template_at_i,
    input  wire  [31:0]         template_data_i,

    output logic [W-1:0]        m_tdata,
    output logic [B-1:0]        m_tkeep,
    output logic                m_tlast,
    output logic                m_tvalid,
    input  wire                 m_tready
);
    wire [W-1:0] q_tdata;
    wire [B-1:0] q_tkeep;
    wire         q_tlast, q_tvalid, q_tready;

    sum_queue #(.W(W), .LEASES(LEASES), .DEPTH(DEPTH), .NB(NB)) sums (
        .clk, .rst_n, .write_i, .word_i, .first_i, .words_i, .count_i, .lease_i, .room_o,
        .m_tdata(q_tdata), .m_tkeep(q_tkeep), .m_tlast(q_tlast), .m_tvalid(q_tvalid), .m_tready(q_tready),
        .template_write_i, .template_at_i, .template_data_i);

    logic busy, ours;  // within a frame; the grant is for a sum
    wire  accept = ~m_tvalid | m_tready;
    wire  valid  = ours ? q_tvalid : s_tvalid;
    wire  last   = ours ? q_tlast : s_tlast;
    wire  other  = ours ? s_tvalid : q_tvalid;

    assign s_tready = accept & ~ours;
    assign q_tready = accept & ours;

    always_ff @(posedge clk) begin
        if (accept) begin
            m_tdata <= ours ? q_tdata : s_tdata;
            m_tlast <= last;
            m_tkeep <= ours ? q_tkeep : s_tkeep;
        end
        if (!rst_n) begin
            busy     <= 1'b0;
            ours     <= 1'b0;
            m_tvalid <= 1'b0;
        end else begin
            if (accept) m_tvalid <= valid;
            if (accept & valid) busy <= ~last;
            if (other & (valid ? accept & last : ~busy)) ours <= ~ours;
        end
    end
endmodule

`default_nettype wire
