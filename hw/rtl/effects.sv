// Decides on a packet, and its effects: the writes to its slot, and the order to the release engine.
//
// Ports
//   decide_i, act_i  control's step: with SLOW a decision is registered in the first and has effect in the second
//   note_i, wipe_i   ... a notice is made for a waiting packet; the slot clear_at_i is cleared
//   refused_i ..     the facts, see packet_check; below_i: the vid is below the lowest one not released
//   h_* q_*          the packet's and the slot's fields; at_i: the lease's index; members_i .. announced_i: its fields
//   few_i            there is room for an answer; notice_waits_i: a notice is pending
//   outcome_o ..     the decision, see module decision, during act_i
//   noted_o          a notice is made
//   write_*_o ..     the slot's new fields and book, see slot_book
//   ordered_o, order_o  an order: {lease, slot, kind, sources, destinations, low bits of the vid}
//
// Timing: all in the cycle of act_i, note_i or wipe_i; the order, which is computed last, a cycle later.
//
// Theory: the decision is 0 while none is made, so the logic behind it need not check the step.
//   - A contribution sets its port's bit, and adds to marks and missing ranks; the minimum of the window caps is kept.
//   - A sum is ordered from the members' buffers, to the parent if there is one and to the members if not; a result
//     from the parent's buffer, to the members. A sum that has gone up is ordered again unchanged.
//   - A notice is a separate record, at index SLOTS, with the packet's fields and the collected missing ranks, or those
//     beneath the sender that disagrees.
`default_nettype none

module effects #(
    parameter int PORTS  = 4,
    parameter int LEASES = 16,
    parameter int SLOTS  = 32,
    parameter int RECORD = 251,
    parameter bit SLOW   = 1'b1,
    localparam int LB    = $clog2(LEASES),
    localparam int SB    = $clog2(SLOTS),
    localparam int BOOK  = 4 + 2 * PORTS,
    localparam int ORDER = LB + SB + 1 + 3 + 2 * PORTS + 8
) (
    input  wire               clk,
    input  wire               rst_n,

    input  wire               decide_i,
    input  wire               act_i,
    input  wire               note_i,
    input  wire               wipe_i,
    input  wire  [SB-1:0]     clear_at_i,

    input  wire               refused_i,
    input  wire  [4:0]        refusal_i,
    input  wire               below_i,
    input  wire               from_parent_i,
    input  wire               root_i,
    input  wire               known_i,
    input  wire               agrees_i,
    input  wire               mine_i,
    input  wire               complete_i,
    input  wire               cap_below_i,
    input  wire  [7:0]        branch_low_i,
    input  wire  [3:0]        branch_high_i,
    input  wire  [PORTS-1:0]  me_i,
    input  wire  [63:0]       ranks_i,
    input  wire               ce_i,

    input  wire               h_resent_i,
    input  wire               h_congested_i,
    input  wire  [7:0]        h_tree_i,
    input  wire               h_bf16_i,
    input  wire  [31:0]       h_job_i,
    input  wire  [31:0]       h_vid_i,
    input  wire  [31:0]       h_chunk_i,
    input  wire  [15:0]       h_epoch_i,
    input  wire  [15:0]       h_window_cap_i,
    input  wire  [15:0]       h_n_elems_i,
    input  wire  [31:0]       h_marks_i,
    input  wire  [63:0]       h_missing_i,

    input  wire  [LB-1:0]     at_i,
    input  wire  [PORTS-1:0]  members_i,
    input  wire  [PORTS-1:0]  parent_i,
    input  wire  [15:0]       announced_i,

    input  wire  [SB-1:0]     slot_i,
    input  wire  [1:0]        q_phase_i,
    input  wire  [PORTS-1:0]  q_arrived_i,
    input  wire  [PORTS-1:0]  q_asked_i,
    input  wire               q_resent_i,
    input  wire               q_congested_i,
    input  wire  [31:0]       q_marks_i,
    input  wire  [15:0]       q_window_cap_i,
    input  wire  [63:0]       q_missing_i,
    input  wire               few_i,
    input  wire               notice_waits_i,

    output logic [4:0]        outcome_o,
    output logic              take_o,
    output logic              release_o,
    output logic              waiting_o,
    output wire               noted_o,

    output logic              write_fields_o,
    output logic              write_book_o,
    output logic [SB:0]       write_at_o,
    output wire  [RECORD-3:0] fields_o,
    output logic [BOOK-1:0]   book_o,

    output logic              ordered_o,
    output logic [ORDER-1:0]  order_o
);
`include "phases.svh"

    wire [4:0] d_outcome;
    wire       d_take, d_release, d_answer, d_asked, d_waiting, d_disagree;
    decision decides (
        .refused_i, .refusal_i, .below_i, .from_parent_i, .resent_i(h_resent_i), .known_i, .agrees_i,
        .phase_i(q_phase_i), .mine_i, .complete_i, .outcome_o(d_outcome), .take_o(d_take), .release_o(d_release),
        .answer_o(d_answer), .asked_o(d_asked), .waiting_o(d_waiting), .disagree_o(d_disagree));

    // Merge with the slot; this packet's window cap is not the minimum.
    wire       d_merge = d_take & known_i & ~from_parent_i;
    wire       d_other = d_take & ~from_parent_i & ~cap_below_i;
    wire [3:0] d_mark = branch_high_i & {4{d_take}};

    // All 0 while nothing is decided, except for the outcome.
    logic       answer, asked, disagree, merge, other_cap;
    logic [3:0] mark_high;
    if (SLOW) begin : g_slow
        always_ff @(posedge clk) begin
            outcome_o <= d_outcome;
            if (!decide_i) begin
                {take_o, release_o, answer, asked, waiting_o, disagree, merge, other_cap, mark_high} <= '0;
            end else begin
                {take_o, release_o, answer, asked, waiting_o, disagree, merge, other_cap, mark_high} <=
                    {d_take, d_release, d_answer, d_asked, d_waiting, d_disagree, d_merge, d_other, d_mark};
            end
        end
    end else begin : g_fast
        assign outcome_o = d_outcome;
        assign {take_o, release_o, answer, asked, waiting_o, disagree, merge, other_cap, mark_high} = {12{act_i}} &
                {d_take, d_release, d_answer, d_asked, d_waiting, d_disagree, d_merge, d_other, d_mark};
    end

    // ---- The slot ------------------------------------------------------------------------------------------
    assign noted_o = (disagree | note_i) & ~notice_waits_i & few_i;

    always_comb begin
        write_fields_o = take_o | noted_o;
        write_book_o   = write_fields_o | answer & q_phase_i == SENT_UP | asked | wipe_i;
        write_at_o     = noted_o ? (SB+1)'(SLOTS) : wipe_i ? {1'b0, clear_at_i} : {1'b0, slot_i};
        if (wipe_i) book_o = '0;
        else if (noted_o) book_o = {NONE, {2*PORTS{1'b0}}, h_resent_i, h_congested_i};
        else if (answer) book_o = {q_phase_i, q_arrived_i, q_asked_i | me_i, 1'b1, q_congested_i};
        else if (asked) book_o = {q_phase_i, q_arrived_i, {PORTS{1'b0}}, q_resent_i, q_congested_i};
        else if (from_parent_i) begin
            book_o = {SUMMED, q_arrived_i, {PORTS{1'b0}}, h_resent_i, h_congested_i | ce_i};
        end else begin
            book_o = {~release_o ? FILLING : root_i ? SUMMED : SENT_UP,
                      (known_i ? q_arrived_i : {PORTS{1'b0}}) | me_i, {PORTS{1'b0}}, 2'b00};
        end
    end

    // A write without take is a notice: the packet's own fields, and if it disagrees its sender's ranks. These are known
    // for cycles, so a register costs no time.
    logic [63:0] ranks;
    always_ff @(posedge clk) ranks <= ranks_i;
    logic [31:0] marks;
    always_comb begin
        for (int i = 0; i < 32; i++) begin
            marks[i] = merge & q_marks_i[i] | h_marks_i[i] | mark_high[i/8] & branch_low_i[i%8];
        end
    end
    assign fields_o = {h_vid_i, h_chunk_i, h_bf16_i, h_n_elems_i, marks,
                       ~other_cap ? h_window_cap_i : known_i ? q_window_cap_i : announced_i,
                       disagree ? ranks : (merge ? q_missing_i : 64'd0) | h_missing_i, h_job_i, h_tree_i, h_epoch_i};

    // ---- The order -----------------------------------------------------------------------------------------
    logic             order_write;
    logic [SB:0]      order_slot;
    logic [2:0]       order_kind;
    logic [PORTS-1:0] order_sources, order_to;

    always_comb begin
        order_write   = take_o & from_parent_i | release_o;
        order_slot    = {1'b0, slot_i};
        order_kind    = RESULT;
        order_sources = root_i ? members_i : parent_i;
        order_to      = members_i;
        if (release_o & ~root_i | answer & q_phase_i == SENT_UP) begin
            order_kind    = PARTIAL;
            order_sources = members_i;
            order_to      = parent_i;
        end else if (answer) order_to = me_i;
        else if (asked) order_to = q_asked_i;
        if (answer | asked & q_asked_i != '0) order_write = few_i;
        if (disagree | note_i) begin
            order_write = noted_o;
            order_slot  = (SB+1)'(SLOTS);
            order_kind  = act_i ? MISMATCH : WAITING;
            order_to    = act_i ? members_i | parent_i : me_i;
        end
    end

    always_ff @(posedge clk) begin
        ordered_o <= rst_n & order_write;
        order_o   <= {at_i, order_slot, order_kind, order_sources, order_to, h_vid_i[7:0]};
    end

`ifndef SYNTHESIS
    always_ff @(posedge clk) begin
        if (rst_n) begin
            if (take_o & from_parent_i) begin
                a_sums: assert (known_i && q_phase_i == SENT_UP);  // a result has a sum that was sent up
            end else if (take_o) begin
                a_member: assert ((me_i & ~members_i) == '0);  // contributions come from members
                a_subset: assert (!known_i || (q_arrived_i & ~members_i) == '0);  // sums contain only members
                a_twice: assert (!known_i || (q_arrived_i & me_i) == '0);  // no contribution is counted twice
            end
            if (release_o) begin
                a_whole: assert (((known_i ? q_arrived_i : '0) | me_i) == members_i);  // sums are complete
            end
            if (order_write) begin
                a_goes: assert (order_to != '0);  // orders have destinations
                a_from: assert (order_sources != '0);  // sums have sources
                a_others: assert ((order_to & ~(members_i | parent_i)) == '0);  // to members or parent only
            end
        end
    end
`endif
endmodule

`default_nettype wire
