// The control block: admits packets, keeps a record per slot, orders releases. It implements the switch of
// docs/protocol-panama.md, with the same outcome for every packet.
//
// Ports
//   pending_i ..     packets waiting at the receiving ports (see rx_port), served round-robin
//   answer_o ..      one port's packet is decided; take_o: it goes to slot_o, `wide_o` if its elements are in the
//                    type of addition
//   begins_o         ... as the first of its vid: pending orders of the slot's previous vid are void
//   init_o ..        after reset every slot gets a buffer
//   order_* ..       the queue of releases, for the release engine
//   record_*         the engine's read of a slot: the fields of the header to be sent, two cycles after record_read_i
//   lease_*          the driver's writes: a lease's words, a port's branch and its ranks, and clear_i: reset its slots
//   outcome_*        one strobe per decided packet, for the counters
//
// Timing: a decision takes the words of the header and 6 cycles (14 with a bus of 64 bits), on wide buses 5 (6 with 512
// bits); in addition one, and three for each vid that had been waiting behind a gap, and PORTS + 1 when ranks of absent
// children are collected for a notice.
//
// Theory: this module has the steps, one packet after the other; their data is in separate modules: the packet
// (packet_header), its lease (lease_table), its vids (vid_ring) and slots (slot_book), comparisons between them
// (packet_check), the effects of a packet (effects), and waiting releases (order_queue).
//   - A lease is found directly: its index is the low bits of the job, rotated with those of the tree. Two leases
//     with the same index exclude each other; the driver reports that.
//   - Sums are not stored but computed again on request: the contributions are still in the port buffers.
//   - A result from the parent goes to the parent's own port buffer in the slot, and from there to the children:
//     a sum of one, which changes no bit.
//   - Notices (waiting, mismatch) are headers without a sum: a separate record, behind those of the slots. While one
//     is pending, no other is made: the sender will ask again.
//   - The queue has an entry for every slot, and as many for answers, which are dropped while these are taken. So
//     control never blocks, and receiving ports never wait for a sender. Workers that exceed their
//     window while sums cannot leave could fill it; their packets are then refused as beyond the window.
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
    localparam int FIRST = (16 + PAD) / B;  // first header word used by control
    localparam bit SLOW  = HEAD - FIRST > 4;  // time for an additional register

`include "phases.svh"

    typedef enum logic [4:0] {
        INIT, FETCH, LOOKUP, READ, SETTLE, CHECK, JOIN, DECIDE, ACT, ADVANCE, LOOK, FIND, RANKS, RANKED, NOTE, WIPE,
        CLEAR
    } state_e;
    state_e state;

    // ---- The packet in question ---------------------------------------------------------------------------
    logic  [PB-1:0]    port, walk;
    wire               ce     = ce_i[port];
    wire               broken = broken_i[port];
    wire   [PORTS-1:0] me     = PORTS'(1) << port;
    logic  [PORTS-1:0] pending;   // delayed by a cycle, without the port being answered
    logic  [PB-1:0]    child;     // the current port, or one whose ranks may be missing
    logic              missed;    // its ranks are missing
    logic              waiting;
    wire   [2:0]       h_kind;
    wire               h_resent, h_congested, h_bf16;
    wire   [7:0]       h_tree;
    wire   [15:0]      h_ip_bytes, h_udp_bytes, h_epoch, h_window_cap, h_n_elems;
    wire   [31:0]      h_job, h_vid, h_chunk, h_marks, h_reserved;
    wire   [63:0]      h_missing, ranks;

    packet_header #(.W(W), .SLOW(SLOW)) packet (
        .clk, .fetch_i(state == FETCH), .word_i(head_word_o), .data_i(head_data_i[port*W +: W]), .forget_i(waiting),
        .add_i(missed), .ranks_i(ranks), .ip_bytes_o(h_ip_bytes), .udp_bytes_o(h_udp_bytes), .kind_o(h_kind),
        .resent_o(h_resent), .congested_o(h_congested), .tree_o(h_tree), .bf16_o(h_bf16), .job_o(h_job),
        .vid_o(h_vid), .chunk_o(h_chunk), .epoch_o(h_epoch), .window_cap_o(h_window_cap), .n_elems_o(h_n_elems),
        .marks_o(h_marks), .missing_o(h_missing), .reserved_o(h_reserved));

    // ---- Its lease ----------------------------------------------------------------------------------------
    logic [LB-1:0]    at, clear_lease, turned;
    wire              l_valid;
    wire [31:0]       l_job;
    wire [7:0]        l_tree;
    wire [15:0]       l_epoch, accepted, announced, l_elements;
    wire [PORTS-1:0]  members, parent;
    wire [4:0]        l_branch;
    wire [SB-1:0]     base, ring;  // first slot of the ring; its slots, less one

    // The header's lease, registered if the header's words arrive slowly enough.
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
    logic [31:0]       ahead;  // vids from the lowest one that is not released
    logic              is_next, goes_on, release_up;
    wire               advances;
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
    wire               wipes = state == INIT | state == CLEAR;

    // Lease and vid arrive before the header's last word if words arrive slowly.
    vid_ring #(.LEASES(LEASES), .SLOTS(SLOTS)) vids (
        .clk, .at_i(at), .base_i(base), .ring_i(ring), .lookup_i(state == (SLOW ? FETCH : LOOKUP)), .vid_i(h_vid),
        .release_i(release_up), .advance_i(advances), .look_i(state == LOOK), .wipe_i(state == WIPE),
        .clear_i(state == CLEAR), .forget_i(wipes), .forget_at_i(clear_at), .ahead_o(ahead), .is_next_o(is_next),
        .slot_o(slot), .goes_on_o(goes_on), .last_o(clear_last));

    slot_book #(.PORTS(PORTS), .SLOTS(SLOTS), .RECORD(RECORD)) slots (
        .clk, .slot_i(slot), .phase_o(q_phase), .arrived_o(q_arrived), .asked_o(q_asked), .resent_o(q_resent),
        .congested_o(q_congested), .vid_o(q_vid), .chunk_o(q_chunk), .bf16_o(q_bf16), .n_elems_o(q_n_elems),
        .marks_o(q_marks), .window_cap_o(q_window_cap), .missing_o(q_missing),
        .write_fields_i(write_fields), .write_book_i(write_book), .write_at_i(write_at), .fields_i(fields),
        .book_i(book), .engine_read_i(record_read_i), .engine_slot_i(order_slot_o), .record_o);

    // ---- What becomes of it -------------------------------------------------------------------------------
    wire        few, any_room, waits, ordered;
    wire        from_parent, root, known, agrees, mine, complete, cap_below, refused;
    wire  [7:0] branch_low;
    wire  [3:0] branch_high;
    wire  [4:0] refusal, outcome;
    wire        take, noted;
    logic       notice_waits;
    wire        act = state == ACT;

    packet_check #(.W(W), .PORTS(PORTS), .BUF_WORDS(BUF_WORDS), .SLOW(SLOW)) check (
        .clk, .me_i(me), .ce_i(ce), .broken_i(broken), .words_i(words_i[port*WB +: WB]),
        .kept_i(kept_i[port*KB +: KB]), .ip_bytes_i(h_ip_bytes), .udp_bytes_i(h_udp_bytes), .kind_i(h_kind),
        .tree_i(h_tree), .bf16_i(h_bf16), .job_i(h_job), .vid_i(h_vid), .chunk_i(h_chunk), .epoch_i(h_epoch),
        .window_cap_i(h_window_cap), .n_elems_i(h_n_elems), .reserved_i(h_reserved), .l_valid_i(l_valid),
        .l_job_i(l_job), .l_tree_i(l_tree), .l_epoch_i(l_epoch), .accepted_i(accepted), .announced_i(announced),
        .l_elements_i(l_elements), .members_i(members), .parent_i(parent), .l_branch_i(l_branch), .ahead_i(ahead),
        .q_phase_i(q_phase), .q_arrived_i(q_arrived), .q_vid_i(q_vid), .q_chunk_i(q_chunk), .q_bf16_i(q_bf16),
        .q_n_elems_i(q_n_elems), .q_window_cap_i(q_window_cap), .any_room_i(any_room), .from_parent_o(from_parent),
        .root_o(root), .known_o(known), .agrees_o(agrees), .mine_o(mine), .complete_o(complete),
        .cap_below_o(cap_below), .branch_low_o(branch_low), .branch_high_o(branch_high), .refused_o(refused),
        .refusal_o(refusal));

    localparam int ORDER = LB + SB + 1 + 3 + 2 * PORTS + 8;
    wire [ORDER-1:0] order;
    effects #(.PORTS(PORTS), .LEASES(LEASES), .SLOTS(SLOTS), .RECORD(RECORD), .SLOW(SLOW)) follows (
        .clk, .rst_n, .decide_i(state == DECIDE), .act_i(act), .note_i(state == NOTE), .wipe_i(wipes),
        .clear_at_i(clear_at), .refused_i(refused), .refusal_i(refusal), .below_i(ahead[31]),
        .from_parent_i(from_parent), .root_i(root), .known_i(known), .agrees_i(agrees), .mine_i(mine),
        .complete_i(complete), .cap_below_i(cap_below), .branch_low_i(branch_low), .branch_high_i(branch_high),
        .me_i(me), .ranks_i(ranks), .ce_i(ce), .h_resent_i(h_resent), .h_congested_i(h_congested), .h_tree_i(h_tree),
        .h_bf16_i(h_bf16), .h_job_i(h_job), .h_vid_i(h_vid), .h_chunk_i(h_chunk), .h_epoch_i(h_epoch),
        .h_window_cap_i(h_window_cap), .h_n_elems_i(h_n_elems), .h_marks_i(h_marks), .h_missing_i(h_missing),
        .at_i(at), .members_i(members), .parent_i(parent), .announced_i(announced), .slot_i(slot),
        .q_phase_i(q_phase), .q_arrived_i(q_arrived), .q_asked_i(q_asked), .q_resent_i(q_resent),
        .q_congested_i(q_congested), .q_marks_i(q_marks), .q_window_cap_i(q_window_cap), .q_missing_i(q_missing),
        .few_i(few), .notice_waits_i(notice_waits), .outcome_o(outcome), .take_o(take), .release_o(release_up),
        .waiting_o(waiting), .noted_o(noted), .write_fields_o(write_fields), .write_book_o(write_book),
        .write_at_o(write_at), .fields_o(fields), .book_o(book), .ordered_o(ordered), .order_o(order));

    order_queue #(.SLOTS(SLOTS), .BITS(ORDER)) orders (
        .clk, .rst_n, .write_i(ordered), .order_i(order), .few_o(few), .any_o(any_room), .valid_o(waits),
        .order_o({order_lease_o, order_slot_o, order_kind_o, order_sources_o, order_to_o, order_vid_o}),
        .take_i(order_take_i));

    // To the ports, a cycle later because of the distance. The next port is selected in the meantime.
    logic          clear_waits, lease_waits;
    logic [AB-1:0] init_base;
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

    // ---- Step by step --------------------------------------------------------------------------------------
    assign advances = release_up & is_next | state == ADVANCE & goes_on;

    // For a notice, the header's missing ranks become those of the absent children.
    always_ff @(posedge clk) begin
        child  <= state == RANKS ? walk : port;
        missed <= state == RANKS & members[walk] & ~q_arrived[walk];
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
            // A decision that began before a write of its lease may still use the old one.
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
                // The vid after a released one has been released already: skip it, and check the next.
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
    logic told;  // a notice is pending
    always_ff @(posedge clk) begin
        if (!rst_n) begin
            told <= 1'b0;
        end else begin
            told <= noted | (told & ~notice_sent_i);
            a_once: assert (!noted || !told);  // no notice overwrites another
            if (take) begin
                a_placed: assert (SB'(slot - base) <= ring);  // slots are within the lease's ring
                // vids are within the window
                a_ahead_of: assert (from_parent || ahead[31] || ahead < {16'd0, accepted});
            end
            a_one: assert ($onehot0(answer_o));  // at most one port is answered at a time
        end
    end
`endif
endmodule

`default_nettype wire
