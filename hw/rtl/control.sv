// The accelerator's mind: admits packets, keeps a record per slot, orders releases. It does what
// docs/protocol-panama.md says of a switch, with the same outcome for every packet.
//
// Ports
//   pending_i ..     packets that wait at the receiving ports (see rx_port), served in turn
//   answer_o ..      one port's packet is decided; take_o: it goes to slot_o, `wide_o` if its elements are in the
//                    type of addition
//   begins_o         ... as the first of its vid: whatever waits to be done with the slot's last one is void
//   init_o ..        after reset every slot gets a buffer
//   order_* ..       the queue of releases, for the release engine
//   record_*         the engine's view of a slot: the fields of the header to be sent, two cycles after record_read_i
//   lease_*          the driver's writes: a lease's words, a port's branch and ranks under it, and clear_i: forget
//                    all that is in a lease's slots and start at vid 0
//   outcome_*        one strobe per decided packet, to be counted
//
// Timing: a decision takes the words of the header and 6 cycles (14 with a bus of 64 bits), on wide buses 5 (6 with 512
// bits); one and three for each vid that had been waiting behind a hole, and PORTS + 1 more when ranks under absent
// children are collected for a notice.
//
// Theory
//   - A lease is found directly: its place is the low bits of the job, turned with those of the tree. Two leases
//     that want one place exclude each other; the driver says so.
//   - A lease has a ring of slots, at least twice the window. Below `released`, the lowest vid not yet released,
//     lie the last `window` sums: they are not stored but added again if a worker asks, for the contributions are
//     still in the port buffers. From `released` on, up to the window, lie the vids that fill.
//   - A result from the parent goes to the parent's own port buffer in the slot, and from there to the children:
//     a sum of one, which changes no bit.
//   - Notices (waiting, mismatch) are headers without a sum: a record of its own, behind those of the slots. If one
//     is still on its way, another is not made: whoever asked will ask again.
//   - The queue has a place for every slot, and as many for answers, which are left out while they are taken. So
//     control never waits for anybody, and receiving ports never wait for a sender. Workers that go beyond their
//     window while sums cannot leave could fill it; what they send is then refused as beyond the window.
`default_nettype none

module control #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int LEASES    = 16,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 176,
    parameter int RECORD    = 251,
    localparam int B        = W / 8,
    localparam int PAD      = (B - 80 % B) % B,
    localparam int HEAD     = (80 + PAD) / B,
    localparam int HB       = HEAD < 2 ? 1 : $clog2(HEAD + 1),
    localparam int LB       = $clog2(LEASES),
    localparam int SB       = $clog2(SLOTS),
    localparam int PB       = $clog2(PORTS),
    localparam int AB       = $clog2((SLOTS + 2) * (BUF_WORDS + 1) + 1),
    localparam int WB       = $clog2(BUF_WORDS + 1),
    localparam int KB       = $clog2(B) + 1
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire  [PORTS-1:0]     pending_i,
    output logic [HB-1:0]        head_word_o,
    input  wire  [PORTS*W-1:0]   head_data_i,
    input  wire  [PORTS-1:0]     ce_i,
    input  wire  [PORTS-1:0]     broken_i,
    input  wire  [PORTS*WB-1:0]  words_i,
    input  wire  [PORTS*KB-1:0]  kept_i,
    output logic [PORTS-1:0]     answer_o,
    output logic                 take_o,
    output logic                 wide_o,
    output logic [SB-1:0]        slot_o,
    output logic                 begins_o,
    output logic                 init_o,
    output logic [AB-1:0]        init_base_o,

    output wire                  order_valid_o,
    input  wire                  order_take_i,
    output wire  [LB-1:0]        order_lease_o,
    output wire  [SB:0]          order_slot_o,
    output wire  [2:0]           order_kind_o,
    output wire  [PORTS-1:0]     order_sources_o,
    output wire  [PORTS-1:0]     order_to_o,
    output wire  [7:0]           order_vid_o,
    input  wire                  record_read_i,
    output wire  [RECORD-1:0]    record_o,
    input  wire                  notice_sent_i,

    input  wire                  lease_write_i,
    input  wire  [LB-1:0]        lease_i,
    input  wire  [3:0]           lease_word_i,
    input  wire                  child_write_i,
    input  wire  [PB-1:0]        child_port_i,
    input  wire  [1:0]           child_word_i,
    input  wire  [31:0]          lease_data_i,
    input  wire                  clear_i,
    output wire                  busy_o,

    output logic                 outcome_valid_o,
    output logic [4:0]           outcome_o
);
    localparam int FIRST = (16 + PAD) / B;  // header words before this one have nothing for us
    localparam bit SLOW  = HEAD - FIRST > 4;  // there is time for one register more where it helps

`include "outcomes.svh"
`include "phases.svh"

    typedef enum logic [4:0] {
        INIT, FETCH, LOOKUP, READ, SETTLE, CHECK, JOIN, DECIDE, ACT, ADVANCE, LOOK, FIND, RANKS, RANKED, NOTE, WIPE,
        CLEAR
    } state_e;
    state_e state;

    // ---- The packet in question ---------------------------------------------------------------------------
    logic  [PB-1:0]    port, walk;
    logic  [15:0]      bytes;
    logic  [639:0]     header;
    wire   [W-1:0]     head_data = head_data_i[port*W +: W];
    wire               ce        = ce_i[port];
    wire               broken    = broken_i[port];
    wire   [PORTS-1:0] me        = PORTS'(1) << port;
    logic  [PORTS-1:0] pending;   // as it was a cycle ago, without who is being answered
    logic  [PB-1:0]    child;     // the port in question, or one whose ranks may be missing
    logic              missed;    // they are

    function automatic logic [15:0] be16(input logic [15:0] v);
        be16 = {v[7:0], v[15:8]};
    endfunction
    function automatic logic [31:0] be32(input logic [31:0] v);
        be32 = {be16(v[15:0]), be16(v[31:16])};
    endfunction

    wire [15:0] h_ip_bytes   = be16(header[8*16 +: 16]);
    wire [15:0] h_udp_bytes  = be16(header[8*38 +: 16]);
    wire  [2:0] h_kind       = header[8*43 +: 3];
    wire        h_resent     = header[8*43+4];
    wire        h_congested  = header[8*43+5];
    wire  [7:0] h_tree       = header[8*44 +: 8];
    wire        h_bf16       = header[8*45+5];
    wire [31:0] h_job        = be32(header[8*46 +: 32]);
    wire [31:0] h_vid        = be32(header[8*50 +: 32]);
    wire [31:0] h_chunk      = be32(header[8*54 +: 32]);
    wire [15:0] h_epoch      = be16(header[8*58 +: 16]);
    wire [15:0] h_window_cap = be16(header[8*60 +: 16]);
    wire [15:0] h_n_elems    = be16(header[8*62 +: 16]);
    wire [31:0] h_marks      = be32(header[8*64 +: 32]);
    wire [63:0] h_missing    = {be32(header[8*68 +: 32]), be32(header[8*72 +: 32])};
    wire [31:0] h_reserved   = header[8*76 +: 32];

    // ---- Its lease ----------------------------------------------------------------------------------------
    logic [LB-1:0]    at, clear_lease, turned;
    wire              l_valid;
    wire [31:0]       l_job;
    wire [7:0]        l_tree;
    wire [15:0]       l_epoch, accepted, announced, l_elements;
    wire [PORTS-1:0]  members, parent;
    wire [4:0]        l_branch;
    wire [63:0]       ranks;
    logic [31:0]      lease_released [0:LEASES-1];
`ifdef FORMAL  // leases that have been there from the start, see hw/formal/lease_model.sv
    initial for (int i = 0; i < LEASES; i++) lease_released[i] = 32'd0;
`endif
    wire [SB-1:0]     base, ring;  // first slot of the ring; its slots, less one
    wire [SB:0]       lap_bit = {1'b0, ring} + (SB+1)'(1);
    logic             from_parent, from_member, root;
    logic [4:0]       branch;

    // The header's lease, as a register if its words come slowly enough to have it when the last one is here.
    always_comb for (int i = 0; i < LB; i++) turned[i] = h_tree[LB-1-i];
    if (SLOW) begin : g_slow_at
        logic [LB-1:0] at_q;
        wire clears = state == WIPE | state == CLEAR | state == FETCH & head_word_o == HB'(FIRST);
        always_ff @(posedge clk) at_q <= clears ? clear_lease : h_job[LB-1:0] ^ turned;
        assign at = at_q;
    end else begin : g_fast_at
        assign at = state == WIPE | state == CLEAR ? clear_lease : h_job[LB-1:0] ^ turned;
    end

    lease_table #(.PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS)) leases (
        .clk, .rst_n, .lease_write_i, .lease_i, .lease_word_i, .child_write_i, .child_port_i, .child_word_i,
        .data_i(lease_data_i), .at_i(at), .child_i(child),
        .valid_o(l_valid), .job_o(l_job), .epoch_o(l_epoch), .tree_o(l_tree), .accepted_o(accepted),
        .announced_o(announced), .ring_o(ring), .base_o(base), .elements_o(l_elements), .members_o(members),
        .parent_o(parent), .branch_o(l_branch), .ranks_o(ranks));

    // ---- Its slot -----------------------------------------------------------------------------------------
    localparam int BOOK = 4 + 2 * PORTS;
    logic [SB-1:0]     slot, clear_at, clear_last;
    wire  [1:0]        q_phase;
    wire  [PORTS-1:0]  q_arrived, q_asked;
    wire               q_resent, q_congested, q_bf16;
    wire  [31:0]       q_vid, q_chunk, q_marks;
    wire  [15:0]       q_n_elems, q_window_cap;
    wire  [63:0]       q_missing;
    logic              write_fields, write_book;
    logic [SB:0]       write_at;
    logic [RECORD-3:0] fields;
    logic [BOOK-1:0]   book;
    logic              laps [0:SLOTS-1];  // of the vid that was released last here: its bit above the ring

    slot_book #(.PORTS(PORTS), .SLOTS(SLOTS), .RECORD(RECORD)) slots (
        .clk, .slot_i(slot), .phase_o(q_phase), .arrived_o(q_arrived), .asked_o(q_asked), .resent_o(q_resent),
        .congested_o(q_congested), .vid_o(q_vid), .chunk_o(q_chunk), .bf16_o(q_bf16), .n_elems_o(q_n_elems),
        .marks_o(q_marks), .window_cap_o(q_window_cap), .missing_o(q_missing),
        .write_fields_i(write_fields), .write_book_i(write_book), .write_at_i(write_at), .fields_i(fields),
        .book_i(book), .engine_read_i(record_read_i), .engine_slot_i(order_slot_o), .record_o);

    // ---- Facts, one register each, so that no cycle is long ------------------------------------------------
    logic          has_lease, of_job, of_tree, empty, reserved, stale, other_epoch, too_large, early, late;
    logic          lap, next_lap, is_next;
    logic    [2:0] lengths;                  // payload, UDP and IP are as long as they should be
    logic   [15:0] udp_due, ip_due;
    logic    [7:0] vid_parts, same_vid;      // four bits each: the slot's vid is the packet's
    logic   [12:0] other_parts, same_other;  // chunk, length, format
    logic          known, agrees, mine, complete_known, complete_new, goes_on, cap_below, cap_below_new;
    logic [31:0]   after, ahead;  // after: the vid after `released`
    logic  [7:0]   branch_low;    // the branch's mark: its three low bits decoded
    logic  [3:0]   branch_high;   // and its two high ones, none if there is no mark
    logic [15:0]   window;
    logic [SB:0]   here;
    logic [SB-1:0] next_slot;
    wire           advances;
    // The vid after this one, or the one that may be next to step over: released already?
    wire  [SB:0]   next_vid = state == LOOK ? here : h_vid[SB:0] + (SB+1)'(1);
    wire  [15:0]   payload = h_n_elems << (h_bf16 & h_kind != PARTIAL ? 1 : 2);
    wire  [15:0]   epochs = h_epoch - l_epoch;
    wire  [16:0]   retained = {1'b0, ahead[15:0]} + {1'b0, window};

    // Lease and vid are here before the header's last word is, if words come slowly.
    wire lookup = state == (SLOW ? FETCH : LOOKUP);

    always_comb begin
        for (int i = 0; i < 8; i++) vid_parts[i] = q_vid[4*i +: 4] == h_vid[4*i +: 4];
        for (int i = 0; i < 8; i++) other_parts[i] = q_chunk[4*i +: 4] == h_chunk[4*i +: 4];
        for (int i = 0; i < 4; i++) other_parts[8+i] = q_n_elems[4*i +: 4] == h_n_elems[4*i +: 4];
        other_parts[12] = q_bf16 == h_bf16;
    end
    if (SLOW) begin : g_slow_match
        always_ff @(posedge clk) {same_vid, same_other} <= {vid_parts, other_parts};
    end else begin : g_fast_match
        assign {same_vid, same_other} = {vid_parts, other_parts};
    end

    always_ff @(posedge clk) begin
        bytes      <= 16'({words_i[port*WB +: WB], {$clog2(B){1'b0}}}) + 16'(kept_i[port*KB +: KB]);
        branch      <= l_branch;
        branch_low  <= 8'd1 << branch[2:0];
        branch_high <= (4'd1 << branch[4:3]) & {4{ce & ~from_parent}};
        from_parent <= |(parent & me);
        from_member <= |(members & me);
        root        <= parent == '0;
        has_lease   <= l_valid;
        of_job      <= l_job == h_job;
        of_tree     <= l_tree == h_tree;
        empty       <= h_n_elems == 16'd0;
        reserved    <= h_reserved != 32'd0;
        stale      <= epochs[15];
        other_epoch <= h_epoch != l_epoch;
        udp_due    <= bytes + 16'd46;
        ip_due     <= bytes + 16'd66;
        lengths    <= {bytes == payload, h_udp_bytes == udp_due, h_ip_bytes == ip_due};
        too_large  <= h_n_elems > l_elements;
        window     <= accepted;
        early      <= ~ahead[31] & (|ahead[30:16] | ahead[15:0] >= window);
        late       <= ahead[31] & (~&ahead[30:16] | ~retained[16]);
        is_next    <= ahead == 32'd0;
        known      <= &same_vid & q_phase != NONE;
        agrees     <= &same_other;
        mine       <= |(q_arrived & me);
        cap_below      <= h_window_cap < q_window_cap;
        cap_below_new  <= h_window_cap < announced;
        complete_known <= (q_arrived | me) == members;
        complete_new   <= me == members;
        next_slot  <= base + (next_vid[SB-1:0] & ring);
        next_lap   <= |(next_vid & lap_bit);
        goes_on    <= laps[next_slot] == next_lap;
        clear_last <= base + ring;
        if (lookup) begin
            ahead    <= h_vid - lease_released[at];
            slot     <= base + (h_vid[SB-1:0] & ring);
            lap      <= |(h_vid[SB:0] & lap_bit);
        end
        if (advances) here <= after[SB:0];
        if (state == WIPE) after <= 32'd0;  // a lease that is cleared starts at vid 0
        else if (lookup | advances) after <= (advances ? after : lease_released[at]) + 32'd1;
        if (state == CLEAR | advances) lease_released[at] <= after;
    end

    // Refusals that need no look at the slot, decided while it is being read.
    logic       refused;
    logic [4:0] refusal;
    always_ff @(posedge clk) begin
        refused <= 1'b1;
        if (broken) refusal <= O_BROKEN_FRAME;
        else if (reserved) refusal <= O_RESERVED_FIELD;
        else if (empty) refusal <= O_EMPTY_FRAGMENT;
        else if (~&lengths) refusal <= O_PAYLOAD_LENGTH;
        else if (!(has_lease & of_job & of_tree)) refusal <= O_NO_LEASE;
        else if (stale) refusal <= O_STALE_EPOCH;
        else if (other_epoch) refusal <= O_FUTURE_EPOCH;
        else if (from_parent ? h_kind != RESULT : from_member & h_kind == RESULT) refusal <= O_WRONG_DIRECTION;
        else if (~from_parent & ~from_member) refusal <= O_NOT_A_NEIGHBOUR;
        else if (too_large) refusal <= O_TOO_LARGE;
        else if (early | ~any_room) refusal <= O_BEYOND_WINDOW;
        else begin
            refusal <= O_TOO_OLD;
            refused <= late;
        end
    end

    // ---- Decision ------------------------------------------------------------------------------------------
    wire [4:0] d_outcome;
    wire       d_take, d_release, d_answer, d_asked, d_waiting, d_disagree;
    decision decides (
        .refused_i(refused), .refusal_i(refusal), .below_i(ahead[31]), .from_parent_i(from_parent),
        .resent_i(h_resent), .known_i(known), .agrees_i(agrees), .phase_i(q_phase), .mine_i(mine),
        .complete_i(known ? complete_known : complete_new), .outcome_o(d_outcome), .take_o(d_take),
        .release_o(d_release), .answer_o(d_answer), .asked_o(d_asked), .waiting_o(d_waiting),
        .disagree_o(d_disagree));

    // With what is in the slot; and of the window caps this packet's is not the least.
    wire d_merge = d_take & known & ~from_parent;
    wire d_other = d_take & ~from_parent & ~(known ? cap_below : cap_below_new);
    wire [3:0] d_mark = branch_high & {4{d_take}};

    // All of it is 0 while nothing is decided, but for the outcome.
    wire        act = state == ACT;
    logic [4:0] outcome;
    logic       take, release_up, answer, asked, waiting, disagree, merge, other_cap;
    logic [3:0] mark_high;
    if (SLOW) begin : g_slow_act
        always_ff @(posedge clk) begin
            outcome <= d_outcome;
            if (state != DECIDE) begin
                {take, release_up, answer, asked, waiting, disagree, merge, other_cap, mark_high} <= '0;
            end else begin
                {take, release_up, answer, asked, waiting, disagree, merge, other_cap, mark_high} <=
                    {d_take, d_release, d_answer, d_asked, d_waiting, d_disagree, d_merge, d_other, d_mark};
            end
        end
    end else begin : g_fast_act
        assign outcome = d_outcome;
        assign {take, release_up, answer, asked, waiting, disagree, merge, other_cap, mark_high} = {12{act}} &
                {d_take, d_release, d_answer, d_asked, d_waiting, d_disagree, d_merge, d_other, d_mark};
    end

    // ---- What follows from it: the slot --------------------------------------------------------------------
    logic notice_waits, clear_waits, lease_waits;
    wire  waits;
    logic [AB-1:0] init_base;
    wire  few, any_room;
    wire  noted  = (disagree | state == NOTE) & ~notice_waits & few;
    wire  wipes  = state == INIT | state == CLEAR;
    assign advances = release_up & is_next | state == ADVANCE & goes_on;

    always_comb begin
        write_fields = take | noted;
        write_book   = write_fields | answer & q_phase == SENT_UP | asked | wipes;
        write_at     = noted ? (SB+1)'(SLOTS) : wipes ? {1'b0, clear_at} : {1'b0, slot};
        if (wipes) book = '0;
        else if (noted) book = {NONE, {2*PORTS{1'b0}}, h_resent, h_congested};
        else if (answer) book = {q_phase, q_arrived, q_asked | me, 1'b1, q_congested};
        else if (asked) book = {q_phase, q_arrived, {PORTS{1'b0}}, q_resent, q_congested};
        else if (from_parent) book = {SUMMED, q_arrived, {PORTS{1'b0}}, h_resent, h_congested | ce};
        else begin
            book = {~release_up ? FILLING : root ? SUMMED : SENT_UP,
                    (known ? q_arrived : {PORTS{1'b0}}) | me, {PORTS{1'b0}}, 2'b00};
        end
    end

    // What is written while nothing is taken is a notice: the packet's own fields.
    logic [31:0] marks;
    always_comb begin
        for (int i = 0; i < 32; i++) begin
            marks[i] = merge & q_marks[i] | h_marks[i] | mark_high[i/8] & branch_low[i%8];
        end
    end
    assign fields = {h_vid, h_chunk, h_bf16, h_n_elems, marks,
                     ~other_cap ? h_window_cap : known ? q_window_cap : announced,
                     (merge ? q_missing : 64'd0) | h_missing, h_job, h_tree, h_epoch};

    // ---- ... and orders ------------------------------------------------------------------------------------
    logic             order_write, ordered;
    logic [SB:0]      order_slot;
    logic [2:0]       order_kind;
    logic [PORTS-1:0] order_sources, order_to;

    always_comb begin
        order_write   = take & from_parent | release_up;
        order_slot    = {1'b0, slot};
        order_kind    = RESULT;
        order_sources = root ? members : parent;
        order_to      = members;
        if (release_up & ~root | answer & q_phase == SENT_UP) begin
            order_kind    = PARTIAL;
            order_sources = members;
            order_to      = parent;
        end else if (answer) order_to = me;
        else if (asked) order_to = q_asked;
        if (answer | asked & q_asked != '0) order_write = few;
        if (disagree | state == NOTE) begin
            order_write = noted;
            order_slot  = (SB+1)'(SLOTS);
            order_kind  = act ? MISMATCH : WAITING;
            order_to    = act ? members | parent : me;
        end
    end

    // A cycle later: what it is made of comes late.
    localparam int ORDER = LB + SB + 1 + 3 + 2 * PORTS + 8;
    logic [ORDER-1:0] order;
    always_ff @(posedge clk) begin
        ordered <= rst_n & order_write;
        order   <= {at, order_slot, order_kind, order_sources, order_to, h_vid[7:0]};
    end
    order_queue #(.SLOTS(SLOTS), .BITS(ORDER)) orders (
        .clk, .rst_n, .write_i(ordered), .order_i(order), .few_o(few), .any_o(any_room), .valid_o(waits),
        .order_o({order_lease_o, order_slot_o, order_kind_o, order_sources_o, order_to_o, order_vid_o}),
        .take_i(order_take_i));

    // To the ports, a cycle later: they are far away. The next port is looked at in the meantime.
    always_ff @(posedge clk) begin
        answer_o    <= rst_n & (act & ~waiting | state == NOTE) ? me : '0;
        take_o      <= take;
        begins_o    <= rst_n & take & ~known;
        wide_o      <= h_kind == PARTIAL & h_bf16;
        slot_o      <= state == INIT ? clear_at : slot;
        init_o      <= state == INIT;
        init_base_o <= init_base;
    end
    assign order_valid_o = waits & ~(act | state == NOTE);  // fields may be written, see slot_book
    assign busy_o        = wipes | clear_waits | lease_waits | ordered | waits;

    always_ff @(posedge clk) begin
        if (wipes) laps[clear_at] <= 1'b1;
        else if (release_up) laps[slot] <= lap;
    end

    // ---- Step by step --------------------------------------------------------------------------------------
    // A word of the header, from the port in question; with a register in between if there is time.
    logic          fetched;
    logic [HB-1:0] fetched_word;
    logic [W-1:0]  fetched_data;
    if (SLOW) begin : g_slow_head
        always_ff @(posedge clk) begin
            fetched      <= state == FETCH;
            fetched_word <= head_word_o;
            fetched_data <= head_data;
        end
    end else begin : g_fast_head
        assign {fetched, fetched_word, fetched_data} = {state == FETCH, head_word_o, head_data};
    end

    // For a notice the header's missing ranks become those under absent children.
    always_ff @(posedge clk) begin
        child  <= state == RANKS ? walk : port;
        missed <= state == RANKS & members[walk] & ~q_arrived[walk];
        if (fetched) begin
            for (int i = 16; i < 80; i++) begin
                if (fetched_word == HB'((i + PAD) / B)) header[8*i +: 8] <= fetched_data[8*((i+PAD)%B) +: 8];
            end
        end else if (waiting) begin
            header[8*68 +: 64] <= 64'd0;
        end else if (missed) begin
            header[8*68 +: 64] <= header[8*68 +: 64] | {be32(ranks[31:0]), be32(ranks[63:32])};
        end
    end

    always_ff @(posedge clk) begin
        pending         <= pending_i & ~answer_o;
        outcome_valid_o <= rst_n & act;
        outcome_o       <= outcome;
        if (clear_i) clear_lease <= lease_i;
        if (!rst_n) begin
            state        <= INIT;
            port         <= '0;
            head_word_o  <= HB'(FIRST);
            clear_at     <= '0;
            init_base    <= '0;
            walk         <= '0;
            clear_waits  <= 1'b0;
            lease_waits  <= 1'b0;
            notice_waits <= 1'b0;
        end else begin
            notice_waits <= noted | (notice_waits & ~notice_sent_i);
            clear_waits  <= clear_i | (clear_waits & state != CLEAR);
            // A decision that began before a lease was written may still follow the old one.
            lease_waits  <= lease_write_i | (lease_waits & state != FETCH);
            case (state)
                INIT: begin
                    clear_at    <= clear_at + SB'(1);
                    init_base <= init_base + AB'(BUF_WORDS + 1);
                    if (clear_at == SB'(SLOTS - 1)) state <= FETCH;
                end
                FETCH: begin
                    if (head_word_o == HB'(FIRST) & clear_waits) begin
                        state <= WIPE;
                    end else if (pending[port]) begin
                        head_word_o <= head_word_o + HB'(1);
                        if (head_word_o == HB'(HEAD - 1)) state <= SLOW ? READ : LOOKUP;
                    end else begin
                        port <= port + PB'(1);
                    end
                end
                LOOKUP: state <= READ;
                READ:   state <= SETTLE;
                SETTLE: state <= CHECK;
                CHECK:  state <= SLOW ? JOIN : ACT;
                JOIN:   state <= DECIDE;
                DECIDE: state <= ACT;
                ACT: begin
                    walk        <= '0;
                    head_word_o <= HB'(FIRST);
                    if (waiting) state <= RANKS;
                    else begin
                        port  <= port + PB'(1);
                        state <= advances & goes_on ? ADVANCE : FETCH;
                    end
                end
                // The vid after one that was released is released already: step over it, and look at the next.
                ADVANCE: state <= goes_on ? LOOK : FETCH;
                LOOK:    state <= FIND;
                FIND:    state <= ADVANCE;
                RANKS: begin
                    walk <= walk + PB'(1);
                    if (walk == PB'(PORTS - 1)) state <= RANKED;
                end
                RANKED: state <= NOTE;
                NOTE: begin
                    port  <= port + PB'(1);
                    state <= FETCH;
                end
                WIPE: begin
                    clear_at <= base;
                    state    <= CLEAR;
                end
                CLEAR: begin
                    clear_at <= clear_at + SB'(1);
                    if (clear_at == clear_last) state <= FETCH;
                end
                default: state <= FETCH;
            endcase
        end
    end

`ifndef SYNTHESIS
    logic told;  // a notice is on its way
    always_ff @(posedge clk) begin
        if (!rst_n) begin
            told <= 1'b0;
        end else begin
            told <= noted | (told & ~notice_sent_i);
            a_once: assert (!noted || !told);  // never a notice over another
            if (take) begin
                a_placed: assert (SB'(slot - base) <= ring);  // never a slot outside of the lease's ring
                if (from_parent) begin
                    a_sums: assert (known && q_phase == SENT_UP);  // never a result for nothing
                end else begin
                    a_member: assert ((me & ~members) == '0);  // never a contribution from a stranger
                    a_subset: assert (!known || (q_arrived & ~members) == '0);  // never strangers in a sum
                    a_twice: assert (!known || (q_arrived & me) == '0);  // never a contribution counted twice
                    a_ahead_of: assert (ahead[31] || ahead < {16'd0, accepted});  // never beyond the window
                end
            end
            if (release_up) begin
                a_whole: assert (((known ? q_arrived : '0) | me) == members);  // never a sum that is not whole
            end
            if (order_write) begin
                a_goes: assert (order_to != '0);  // never an order for nobody
                a_from: assert (order_sources != '0);  // never a sum of nothing
                a_others: assert ((order_to & ~(members | parent)) == '0);  // never an order for strangers
            end
            a_one: assert ($onehot0(answer_o));  // never two ports answered at once
        end
    end
`endif
endmodule

`default_nettype wire
