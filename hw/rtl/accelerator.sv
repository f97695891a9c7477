// The accelerator: PORTS lines in, PORTS lines out, between the wire and a switch chip. Aggregation packets are summed;
// all other packets pass.
//
// Ports, each PORTS times, port 0 in the low bits:
//   s_net_*  frames from the wire, without preamble and FCS; s_net_terror with the last word drops the frame if
//            it is an aggregation packet, and passes with it if not
//   m_net_*  frames to the wire: the switch chip's, and sums
//   s_sw_*, m_sw_*  frames from and to the switch chip
//   s_axil_* registers (docs/accelerator-registers.md)
// Parameters: W, the bus, 64 to 512; PORTS, a power of two from 2; LEASES, jobs' trees at a time, a power of two;
// SLOTS, fragments that a port holds, over all leases, a power of two; BUF_WORDS, words of the largest payload; FIFO,
// words of sums that wait at a sending port, a power of two, at least two frames with what is on its way.
//
// Timing: one word per cycle on every line, both ways. Hold rst_n low for 64 cycles at least, so that the
// pipelines, which have no reset, run empty.
//
// Theory of operation: hw/README.md, with the path of one packet.
`default_nettype none

module accelerator #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int LEASES    = 16,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 1408 / (W / 8),
    parameter int FIFO      = 1 << $clog2(2 * (BUF_WORDS + 40 + 8 * $clog2(PORTS))),
    localparam int B        = W / 8
) (
    input  wire                clk,
    input  wire                rst_n,

    input  wire  [PORTS*W-1:0] s_net_tdata,
    input  wire  [PORTS*B-1:0] s_net_tkeep,
    input  wire  [PORTS-1:0]   s_net_tlast,
    input  wire  [PORTS-1:0]   s_net_terror,
    input  wire  [PORTS-1:0]   s_net_tvalid,
    output wire  [PORTS-1:0]   s_net_tready,

    output wire  [PORTS*W-1:0] m_net_tdata,
    output wire  [PORTS*B-1:0] m_net_tkeep,
    output wire  [PORTS-1:0]   m_net_tlast,
    output wire  [PORTS-1:0]   m_net_tvalid,
    input  wire  [PORTS-1:0]   m_net_tready,

    output wire  [PORTS*W-1:0] m_sw_tdata,
    output wire  [PORTS*B-1:0] m_sw_tkeep,
    output wire  [PORTS-1:0]   m_sw_tlast,
    output wire  [PORTS-1:0]   m_sw_terror,
    output wire  [PORTS-1:0]   m_sw_tvalid,
    input  wire  [PORTS-1:0]   m_sw_tready,

    input  wire  [PORTS*W-1:0] s_sw_tdata,
    input  wire  [PORTS*B-1:0] s_sw_tkeep,
    input  wire  [PORTS-1:0]   s_sw_tlast,
    input  wire  [PORTS-1:0]   s_sw_tvalid,
    output wire  [PORTS-1:0]   s_sw_tready,

    input  wire  [19:0]        s_axil_awaddr,
    input  wire                s_axil_awvalid,
    output wire                s_axil_awready,
    input  wire  [31:0]        s_axil_wdata,
    input  wire  [3:0]         s_axil_wstrb,
    input  wire                s_axil_wvalid,
    output wire                s_axil_wready,
    output wire  [1:0]         s_axil_bresp,
    output wire                s_axil_bvalid,
    input  wire                s_axil_bready,
    input  wire  [19:0]        s_axil_araddr,
    input  wire                s_axil_arvalid,
    output wire                s_axil_arready,
    output wire  [31:0]        s_axil_rdata,
    output wire  [1:0]         s_axil_rresp,
    output wire                s_axil_rvalid,
    input  wire                s_axil_rready
);
    localparam int LB = $clog2(LEASES);
    localparam int PB = $clog2(PORTS);

    wire          lease_write, child_write, template_write, clear, busy, outcome_valid;
    wire [LB-1:0] lease;
    wire [3:0]    lease_word;
    wire [PB-1:0] port;
    wire [1:0]    child_word;
    wire [4:0]    template_word, outcome;
    wire [31:0]   data;

    csr #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS)) registers (
        .clk, .rst_n,
        .s_axil_awaddr, .s_axil_awvalid, .s_axil_awready, .s_axil_wdata, .s_axil_wstrb, .s_axil_wvalid,
        .s_axil_wready, .s_axil_bresp, .s_axil_bvalid, .s_axil_bready, .s_axil_araddr, .s_axil_arvalid,
        .s_axil_arready, .s_axil_rdata, .s_axil_rresp, .s_axil_rvalid, .s_axil_rready,
        .lease_write_o(lease_write), .child_write_o(child_write), .template_write_o(template_write),
        .clear_o(clear), .lease_o(lease), .lease_word_o(lease_word), .port_o(port), .child_word_o(child_word),
        .template_word_o(template_word), .data_o(data), .busy_i(busy), .outcome_valid_i(outcome_valid),
        .outcome_i(outcome));

    aggregator #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS), .FIFO(FIFO)) core (
        .clk, .rst_n,
        .s_net_tdata, .s_net_tkeep, .s_net_tlast, .s_net_terror, .s_net_tvalid, .s_net_tready,
        .m_net_tdata, .m_net_tkeep, .m_net_tlast, .m_net_tvalid, .m_net_tready,
        .m_sw_tdata, .m_sw_tkeep, .m_sw_tlast, .m_sw_terror, .m_sw_tvalid, .m_sw_tready,
        .s_sw_tdata, .s_sw_tkeep, .s_sw_tlast, .s_sw_tvalid, .s_sw_tready,
        .lease_write_i(lease_write), .child_write_i(child_write), .template_write_i(template_write),
        .clear_i(clear), .lease_i(lease), .lease_word_i(lease_word), .port_i(port), .child_word_i(child_word),
        .template_word_i(template_word), .data_i(data), .busy_o(busy), .outcome_valid_o(outcome_valid),
        .outcome_o(outcome));

`ifndef SYNTHESIS
    for (genvar p = 0; p < PORTS; p++) begin : g_check
        axis_check #(.W(W)) net_in (
            .clk, .rst_n, .tdata(s_net_tdata[W*p +: W]), .tkeep(s_net_tkeep[B*p +: B]), .tlast(s_net_tlast[p]),
            .tvalid(s_net_tvalid[p]), .tready(s_net_tready[p]));
        axis_check #(.W(W)) net_out (
            .clk, .rst_n, .tdata(m_net_tdata[W*p +: W]), .tkeep(m_net_tkeep[B*p +: B]), .tlast(m_net_tlast[p]),
            .tvalid(m_net_tvalid[p]), .tready(m_net_tready[p]));
        axis_check #(.W(W)) chip_in (
            .clk, .rst_n, .tdata(s_sw_tdata[W*p +: W]), .tkeep(s_sw_tkeep[B*p +: B]), .tlast(s_sw_tlast[p]),
            .tvalid(s_sw_tvalid[p]), .tready(s_sw_tready[p]));
        axis_check #(.W(W)) chip_out (
            .clk, .rst_n, .tdata(m_sw_tdata[W*p +: W]), .tkeep(m_sw_tkeep[B*p +: B]), .tlast(m_sw_tlast[p]),
            .tvalid(m_sw_tvalid[p]), .tready(m_sw_tready[p]));
    end
`endif
endmodule

`default_nettype wire
