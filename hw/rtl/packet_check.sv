// Compares a packet with its lease and its slot: the facts for the decision, and the reason of a refusal.
//
// Ports
//   me_i ..        its port, and the port's facts: congested, broken, whole words of payload and remaining bytes
//   kind_i ..      the header's fields, see packet_header
//   l_valid_i ..   its lease, see lease_table; ahead_i: distance of its vid from the lowest that is not released
//   q_phase_i ..   its slot, see slot_book; any_room_i: there is room for an order
//   from_parent_o, root_o  it comes from the parent; the lease has no parent
//   known_o, agrees_o  the slot has this vid; with the same chunk, format and length
//   mine_o, complete_o  this port is already in the slot's sum; with it the sum is complete
//   cap_below_o    its window cap is below the slot's, or the lease's if the vid is new
//   branch_*       the mark that this child makes if its frame was congested: three low bits decoded, two high ones
//   refused_o, refusal_o  it is refused regardless of the slot; refusal_o is also the reason for an old one
//
// Timing: outputs are functions of registers only. From the frame's length to the refusal it takes four cycles, from a
// lease's fields two, from a slot's fields to known_o and agrees_o two with SLOW, else one.
//
// Theory: one register per fact, which keeps paths short; late facts are compared four bits at a time and joined a
// cycle later. The order of refusals is that of docs/protocol-panama.md.
`default_nettype none

module packet_check #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int BUF_WORDS = 176,
    parameter bit SLOW      = 1'b1,
    localparam int B        = W / 8,
    localparam int WB       = $clog2(BUF_WORDS + 1),
    localparam int KB       = $clog2(B) + 1
) (
    input  wire              clk,

    input  wire  [PORTS-1:0] me_i,
    input  wire              ce_i,
    input  wire              broken_i,
    input  wire  [WB-1:0]    words_i,
    input  wire  [KB-1:0]    kept_i,

    input  wire  [15:0]      ip_bytes_i,
    input  wire  [15:0]      udp_bytes_i,
    input  wire  [2:0]       kind_i,
    input  wire  [7:0]       tree_i,
    input  wire              bf16_i,
    input  wire  [31:0]      job_i,
    input  wire  [31:0]      vid_i,
    input  wire  [31:0]      chunk_i,
    input  wire  [15:0]      epoch_i,
    input  wire  [15:0]      window_cap_i,
    input  wire  [15:0]      n_elems_i,
    input  wire  [31:0]      reserved_i,

    input  wire              l_valid_i,
    input  wire  [31:0]      l_job_i,
    input  wire  [7:0]       l_tree_i,
    input  wire  [15:0]      l_epoch_i,
    input  wire  [15:0]      accepted_i,
    input  wire  [15:0]      announced_i,
    input  wire  [15:0]      l_elements_i,
    input  wire  [PORTS-1:0] members_i,
    input  wire  [PORTS-1:0] parent_i,
    input  wire  [4:0]       l_branch_i,
    input  wire  [31:0]      ahead_i,

    input  wire  [1:0]       q_phase_i,
    input  wire  [PORTS-1:0] q_arrived_i,
    input  wire  [31:0]      q_vid_i,
    input  wire  [31:0]      q_chunk_i,
    input  wire              q_bf16_i,
    input  wire  [15:0]      q_n_elems_i,
    input  wire  [15:0]      q_window_cap_i,
    input  wire              any_room_i,

    output logic             from_parent_o,
    output logic             root_o,
    output logic             known_o,
    output logic             agrees_o,
    output logic             mine_o,
    output wire              complete_o,
    output wire              cap_below_o,
    output logic [7:0]       branch_low_o,
    output logic [3:0]       branch_high_o,
    output logic             refused_o,
    output logic [4:0]       refusal_o
);
`include "outcomes.svh"
`include "phases.svh"

    logic  [15:0] bytes, udp_due, ip_due, window;
    logic   [2:0] lengths;                  // payload, UDP and IP lengths are correct
    logic         has_lease, of_job, of_tree, empty, reserved, stale, other_epoch, too_large, early, late, from_member;
    logic   [7:0] vid_parts, same_vid;      // four bits each: the slot's vid is the packet's
    logic  [12:0] other_parts, same_other;  // chunk, length, format
    logic         complete_known, complete_new, cap_below, cap_below_new;
    logic   [4:0] branch;
    wire   [15:0] payload = n_elems_i << (bf16_i & kind_i != PARTIAL ? 1 : 2);
    wire   [15:0] epochs = epoch_i - l_epoch_i;
    wire   [16:0] retained = {1'b0, ahead_i[15:0]} + {1'b0, window};

    assign complete_o  = known_o ? complete_known : complete_new;
    assign cap_below_o = known_o ? cap_below : cap_below_new;

    always_comb begin
        for (int i = 0; i < 8; i++) vid_parts[i] = q_vid_i[4*i +: 4] == vid_i[4*i +: 4];
        for (int i = 0; i < 8; i++) other_parts[i] = q_chunk_i[4*i +: 4] == chunk_i[4*i +: 4];
        for (int i = 0; i < 4; i++) other_parts[8+i] = q_n_elems_i[4*i +: 4] == n_elems_i[4*i +: 4];
        other_parts[12] = q_bf16_i == bf16_i;
    end
    if (SLOW) begin : g_slow
        always_ff @(posedge clk) {same_vid, same_other} <= {vid_parts, other_parts};
    end else begin : g_fast
        assign {same_vid, same_other} = {vid_parts, other_parts};
    end

    always_ff @(posedge clk) begin
        bytes          <= 16'({words_i, {$clog2(B){1'b0}}}) + 16'(kept_i);
        udp_due        <= bytes + 16'd46;
        ip_due         <= bytes + 16'd66;
        lengths        <= {bytes == payload, udp_bytes_i == udp_due, ip_bytes_i == ip_due};
        branch         <= l_branch_i;
        branch_low_o   <= 8'd1 << branch[2:0];
        branch_high_o  <= (4'd1 << branch[4:3]) & {4{ce_i & ~from_parent_o}};
        from_parent_o  <= |(parent_i & me_i);
        from_member    <= |(members_i & me_i);
        root_o         <= parent_i == '0;
        has_lease      <= l_valid_i;
        of_job         <= l_job_i == job_i;
        of_tree        <= l_tree_i == tree_i;
        empty          <= n_elems_i == 16'd0;
        reserved       <= reserved_i != 32'd0;
        stale          <= epochs[15];
        other_epoch    <= epoch_i != l_epoch_i;
        too_large      <= n_elems_i > l_elements_i;
        window         <= accepted_i;
        early          <= ~ahead_i[31] & (|ahead_i[30:16] | ahead_i[15:0] >= window);
        late           <= ahead_i[31] & (~&ahead_i[30:16] | ~retained[16]);
        known_o        <= &same_vid & q_phase_i != NONE;
        agrees_o       <= &same_other;
        mine_o         <= |(q_arrived_i & me_i);
        cap_below      <= window_cap_i < q_window_cap_i;
        cap_below_new  <= window_cap_i < announced_i;
        complete_known <= (q_arrived_i | me_i) == members_i;
        complete_new   <= me_i == members_i;
    end

    always_ff @(posedge clk) begin
        refused_o <= 1'b1;
        if (broken_i) refusal_o <= O_BROKEN_FRAME;
        else if (reserved) refusal_o <= O_RESERVED_FIELD;
        else if (empty) refusal_o <= O_EMPTY_FRAGMENT;
        else if (~&lengths) refusal_o <= O_PAYLOAD_LENGTH;
        else if (!(has_lease & of_job & of_tree)) refusal_o <= O_NO_LEASE;
        else if (stale) refusal_o <= O_STALE_EPOCH;
        else if (other_epoch) refusal_o <= O_FUTURE_EPOCH;
        else if (from_parent_o ? kind_i != RESULT : from_member & kind_i == RESULT) refusal_o <= O_WRONG_DIRECTION;
        else if (~from_parent_o & ~from_member) refusal_o <= O_NOT_A_NEIGHBOUR;
        else if (too_large) refusal_o <= O_TOO_LARGE;
        else if (early | ~any_room_i) refusal_o <= O_BEYOND_WINDOW;
        else begin
            refusal_o <= O_TOO_OLD;
            refused_o <= late;
        end
    end
endmodule

`default_nettype wire
