// The accelerator: PORTS lines in, PORTS lines out, a switch chip behind. Aggregation packets are added on
// the way; everything else passes.
//
// Ports, each PORTS times, port 0 in the low bits:
//   s_net_*  frames from the wire, without preamble and FCS; s_net_terror with the last word drops the frame if
//            it is an aggregation packet, and passes with it if not
//   m_net_*  frames to the wire: the switch chip's, and sums
//   s_sw_*, m_sw_*  frames from and to the switch chip
//   s_axil_* registers (docs/accelerator-registers.md)
// Parameters: W, the bus, 64 to 512; PORTS, a power of two from 2; LEASES, jobs' trees at a time, a power of two; SLOTS, fragments that a port
// holds, over all leases, a power of two; BUF_WORDS, words of the largest payload; FIFO, words of sums that wait
// at a sending port, at least two frames.
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
    parameter int FIFO      = 2 * BUF_WORDS + 160,
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
    localparam int PAD    = (B - 80 % B) % B;
    localparam int HEAD   = (80 + PAD) / B;
    localparam int HB     = HEAD < 2 ? 1 : $clog2(HEAD + 1);
    localparam int TWORDS = (42 + PAD + B - 1) / B;
    localparam int TB     = (TWORDS < 2 ? 1 : $clog2(TWORDS)) + $clog2(W / 32);
    localparam int CB     = $clog2(B);
    localparam int LB     = $clog2(LEASES);
    localparam int SB     = $clog2(SLOTS);
    localparam int PB     = $clog2(PORTS);
    localparam int AB     = $clog2((SLOTS + 2) * BUF_WORDS + 1);
    localparam int RECORD = 251;  // bits of a slot's header fields, see control
    localparam int ON_WAY = 8 * PB + 12;

    // Driver to control and sending ports.
    wire          lease_write, child_write, template_write, clear, control_busy, engine_idle;
    wire [LB-1:0] csr_lease;
    wire [3:0]    lease_word;
    wire [PB-1:0] csr_port;
    wire [1:0]    child_word;
    wire [4:0]    template_word;
    wire [31:0]   csr_data;
    wire          outcome_valid;
    wire [4:0]    outcome;

    // Receiving ports and control.
    wire [PORTS-1:0]    pending, ce, broken, answer;
    wire [HB-1:0]       head_word;
    wire [PORTS*W-1:0]  head_data;
    wire [PORTS*16-1:0] bytes;
    wire                take, wide, init;
    wire [SB-1:0]       slot;
    wire [AB-1:0]       init_base;

    // Control, engine, receiving and sending ports.
    wire                order_valid, order_take, record_read, notice_sent;
    wire [LB-1:0]       order_lease, lease;
    wire [SB:0]         order_slot;
    wire [2:0]          order_kind;
    wire [7:0]           order_vid;
    wire [PORTS-1:0]    order_sources, order_to, sources, room, write;
    wire [RECORD-1:0]   record;
    wire                load, step, half, last;
    wire [SB-1:0]       read_slot;
    wire [PORTS*W-1:0]  terms;
    wire [W-1:0]        word;
    wire [CB-1:0]       count;

    csr #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS)) registers (
        .clk, .rst_n,
        .s_axil_awaddr, .s_axil_awvalid, .s_axil_awready, .s_axil_wdata, .s_axil_wstrb, .s_axil_wvalid,
        .s_axil_wready, .s_axil_bresp, .s_axil_bvalid, .s_axil_bready, .s_axil_araddr, .s_axil_arvalid,
        .s_axil_arready, .s_axil_rdata, .s_axil_rresp, .s_axil_rvalid, .s_axil_rready,
        .lease_write_o(lease_write), .child_write_o(child_write), .template_write_o(template_write),
        .clear_o(clear), .lease_o(csr_lease), .lease_word_o(lease_word), .port_o(csr_port),
        .child_word_o(child_word), .template_word_o(template_word), .data_o(csr_data),
        .busy_i(control_busy | ~engine_idle), .outcome_valid_i(outcome_valid), .outcome_i(outcome));

    control #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS), .RECORD(RECORD))
    mind (
        .clk, .rst_n,
        .pending_i(pending), .head_word_o(head_word), .head_data_i(head_data), .ce_i(ce), .broken_i(broken),
        .bytes_i(bytes), .answer_o(answer), .take_o(take), .wide_o(wide), .slot_o(slot), .init_o(init),
        .init_base_o(init_base),
        .order_valid_o(order_valid), .order_take_i(order_take), .order_lease_o(order_lease),
        .order_slot_o(order_slot), .order_kind_o(order_kind), .order_sources_o(order_sources),
        .order_to_o(order_to), .order_vid_o(order_vid), .record_read_i(record_read), .record_o(record), .notice_sent_i(notice_sent),
        .lease_write_i(lease_write), .lease_i(csr_lease), .lease_word_i(lease_word),
        .child_write_i(child_write), .child_port_i(csr_port), .child_word_i(child_word),
        .lease_data_i(csr_data), .clear_i(clear), .busy_o(control_busy),
        .outcome_valid_o(outcome_valid), .outcome_o(outcome));

    release_engine #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS),
                     .RECORD(RECORD)) engine (
        .clk, .rst_n,
        .order_valid_i(order_valid), .order_take_o(order_take), .order_lease_i(order_lease),
        .order_slot_i(order_slot), .order_kind_i(order_kind), .order_sources_i(order_sources),
        .order_to_i(order_to), .order_vid_i(order_vid), .record_read_o(record_read), .record_i(record),
        .load_o(load), .slot_o(read_slot), .sources_o(sources), .half_o(half), .step_o(step), .terms_i(terms),
        .room_i(room), .write_o(write), .word_o(word), .last_o(last), .count_o(count), .lease_o(lease),
        .notice_sent_o(notice_sent), .idle_o(engine_idle));

    for (genvar p = 0; p < PORTS; p++) begin : g_port
        rx_port #(.W(W), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS)) rx (
            .clk, .rst_n,
            .s_tdata(s_net_tdata[W*p +: W]), .s_tkeep(s_net_tkeep[B*p +: B]), .s_tlast(s_net_tlast[p]),
            .s_terror(s_net_terror[p]), .s_tvalid(s_net_tvalid[p]), .s_tready(s_net_tready[p]),
            .m_tdata(m_sw_tdata[W*p +: W]), .m_tkeep(m_sw_tkeep[B*p +: B]), .m_tlast(m_sw_tlast[p]),
            .m_terror(m_sw_terror[p]), .m_tvalid(m_sw_tvalid[p]), .m_tready(m_sw_tready[p]),
            .pending_o(pending[p]), .head_word_i(head_word), .head_data_o(head_data[W*p +: W]),
            .ce_o(ce[p]), .broken_o(broken[p]), .bytes_o(bytes[16*p +: 16]), .answer_i(answer[p]),
            .take_i(take), .wide_i(wide), .slot_i(slot), .init_i(init), .init_base_i(init_base),
            .load_i(load), .read_slot_i(read_slot), .source_i(sources[p]), .half_i(half), .step_i(step),
            .terms_o(terms[W*p +: W]));

        tx_port #(.W(W), .LEASES(LEASES), .DEPTH(FIFO), .FRAME(HEAD + BUF_WORDS + ON_WAY)) tx (
            .clk, .rst_n,
            .s_tdata(s_sw_tdata[W*p +: W]), .s_tkeep(s_sw_tkeep[B*p +: B]), .s_tlast(s_sw_tlast[p]),
            .s_tvalid(s_sw_tvalid[p]), .s_tready(s_sw_tready[p]),
            .m_tdata(m_net_tdata[W*p +: W]), .m_tkeep(m_net_tkeep[B*p +: B]), .m_tlast(m_net_tlast[p]),
            .m_tvalid(m_net_tvalid[p]), .m_tready(m_net_tready[p]),
            .write_i(write[p]), .word_i(word), .last_i(last), .count_i(count), .lease_i(lease),
            .room_o(room[p]),
            .template_write_i(template_write & csr_port == PB'(p)),
            .template_at_i({csr_lease, TB'(template_word) + TB'(PAD / 4)}), .template_data_i(csr_data));
    end
endmodule

`default_nettype wire
