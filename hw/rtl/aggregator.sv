// The accelerator without its registers: receiving ports, control, release engine, sending ports.
//
// Ports: the lines as in accelerator; the driver's writes and the counters' strobes as in csr.
//
// Timing: one word per cycle on every line, both ways.
//
// Theory: only wires between the parts; hw/README.md follows a packet through them.
`default_nettype none

module aggregator #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int LEASES    = 16,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 1408 / (W / 8),
    parameter int FIFO      = 1 << $clog2(2 * (BUF_WORDS + 40 + 8 * $clog2(PORTS))),
    localparam int B        = W / 8,
    localparam int LB       = $clog2(LEASES),
    localparam int PB       = $clog2(PORTS)
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

    input  wire                lease_write_i,
    input  wire                child_write_i,
    input  wire                template_write_i,
    input  wire                clear_i,
    input  wire  [LB-1:0]      lease_i,
    input  wire  [3:0]         lease_word_i,
    input  wire  [PB-1:0]      port_i,
    input  wire  [1:0]         child_word_i,
    input  wire  [4:0]         template_word_i,
    input  wire  [31:0]        data_i,
    output wire                busy_o,
    output wire                outcome_valid_o,
    output wire  [4:0]         outcome_o
);
    localparam int PAD    = (B - 80 % B) % B;
    localparam int HEAD   = (80 + PAD) / B;
    localparam int HB     = HEAD < 2 ? 1 : $clog2(HEAD + 1);
    localparam int TWORDS = (42 + PAD + B - 1) / B;
    localparam int TB     = $clog2(TWORDS + 1) + $clog2(W / 32);
    localparam int CB     = $clog2(B);
    localparam int WB     = $clog2(BUF_WORDS + 1);
    localparam int NB     = $clog2(HEAD + BUF_WORDS + 1);
    localparam int SB     = $clog2(SLOTS);
    localparam int AB     = $clog2((SLOTS + 2) * (BUF_WORDS + 1) + 1);
    localparam int RECORD = 251;  // bits of a slot's record, see slot_book

    // Receiving ports and control.
    wire [PORTS-1:0]          pending, ce, broken, answer;
    wire [HB-1:0]             head_word;
    wire [PORTS*W-1:0]        head_data;
    wire [PORTS*WB-1:0]       whole;
    wire [PORTS*(CB+1)-1:0]   kept;
    wire                      take, wide, init, begins;
    wire [SB-1:0]             slot;
    wire [AB-1:0]             init_base;

    // Control, engine, receiving and sending ports.
    wire                order_valid, order_take, record_read, notice_sent;
    wire [LB-1:0]       order_lease, lease;
    wire [SB:0]         order_slot;
    wire [2:0]          order_kind;
    wire [7:0]          order_vid;
    wire [PORTS-1:0]    order_sources, order_to, sources, room, write;
    wire [RECORD-1:0]   record;
    wire                load, step, half, first;
    wire [SB-1:0]       read_slot;
    wire [PORTS*W-1:0]  terms;
    wire [W-1:0]        word;
    wire [NB-1:0]       words;
    wire [CB-1:0]       count;
    wire                control_busy, engine_idle;
    assign busy_o = control_busy | ~engine_idle;

    control #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS), .RECORD(RECORD))
    mind (
        .clk, .rst_n,
        .pending_i(pending), .head_word_o(head_word), .head_data_i(head_data), .ce_i(ce), .broken_i(broken),
        .words_i(whole), .kept_i(kept), .answer_o(answer), .take_o(take), .wide_o(wide), .slot_o(slot),
        .begins_o(begins), .init_o(init), .init_base_o(init_base),
        .order_valid_o(order_valid), .order_take_i(order_take), .order_lease_o(order_lease),
        .order_slot_o(order_slot), .order_kind_o(order_kind), .order_sources_o(order_sources),
        .order_to_o(order_to), .order_vid_o(order_vid), .record_read_i(record_read), .record_o(record),
        .notice_sent_i(notice_sent),
        .lease_write_i, .lease_i, .lease_word_i, .child_write_i, .child_port_i(port_i), .child_word_i,
        .lease_data_i(data_i), .clear_i, .busy_o(control_busy), .outcome_valid_o, .outcome_o);

    release_engine #(.W(W), .PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS),
                     .RECORD(RECORD)) engine (
        .clk, .rst_n,
        .order_valid_i(order_valid), .order_take_o(order_take), .order_lease_i(order_lease),
        .order_slot_i(order_slot), .order_kind_i(order_kind), .order_sources_i(order_sources),
        .order_to_i(order_to), .order_vid_i(order_vid), .begins_i(begins), .begins_slot_i(slot),
        .record_read_o(record_read), .record_i(record),
        .load_o(load), .slot_o(read_slot), .sources_o(sources), .half_o(half), .step_o(step), .terms_i(terms),
        .room_i(room), .write_o(write), .word_o(word), .first_o(first), .words_o(words), .count_o(count),
        .lease_o(lease), .notice_sent_o(notice_sent), .idle_o(engine_idle));

    for (genvar p = 0; p < PORTS; p++) begin : g_port
        rx_port #(.W(W), .SLOTS(SLOTS), .BUF_WORDS(BUF_WORDS)) rx (
            .clk, .rst_n,
            .s_tdata(s_net_tdata[W*p +: W]), .s_tkeep(s_net_tkeep[B*p +: B]), .s_tlast(s_net_tlast[p]),
            .s_terror(s_net_terror[p]), .s_tvalid(s_net_tvalid[p]), .s_tready(s_net_tready[p]),
            .m_tdata(m_sw_tdata[W*p +: W]), .m_tkeep(m_sw_tkeep[B*p +: B]), .m_tlast(m_sw_tlast[p]),
            .m_terror(m_sw_terror[p]), .m_tvalid(m_sw_tvalid[p]), .m_tready(m_sw_tready[p]),
            .pending_o(pending[p]), .head_word_i(head_word), .head_data_o(head_data[W*p +: W]),
            .ce_o(ce[p]), .broken_o(broken[p]), .words_o(whole[WB*p +: WB]), .kept_o(kept[(CB+1)*p +: CB+1]),
            .answer_i(answer[p]),
            .take_i(take), .wide_i(wide), .slot_i(slot), .init_i(init), .init_base_i(init_base),
            .load_i(load), .read_slot_i(read_slot), .source_i(sources[p]), .half_i(half), .step_i(step),
            .terms_o(terms[W*p +: W]));

        tx_port #(.W(W), .LEASES(LEASES), .DEPTH(FIFO), .NB(NB)) tx (
            .clk, .rst_n,
            .s_tdata(s_sw_tdata[W*p +: W]), .s_tkeep(s_sw_tkeep[B*p +: B]), .s_tlast(s_sw_tlast[p]),
            .s_tvalid(s_sw_tvalid[p]), .s_tready(s_sw_tready[p]),
            .write_i(write[p]), .word_i(word), .first_i(first), .words_i(words), .count_i(count), .lease_i(lease),
            .room_o(room[p]),
            .template_write_i(template_write_i & port_i == PB'(p)),
            .template_at_i({lease_i, TB'(template_word_i) + TB'(PAD / 4)}), .template_data_i(data_i),
            .m_tdata(m_net_tdata[W*p +: W]), .m_tkeep(m_net_tkeep[B*p +: B]), .m_tlast(m_net_tlast[p]),
            .m_tvalid(m_net_tvalid[p]), .m_tready(m_net_tready[p]));
    end
endmodule

`default_nettype wire
