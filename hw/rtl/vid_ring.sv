// The position of a vid: its distance from the lowest one that is not released, its slot, and whether it was released.
//
// Ports
//   at_i, base_i, ring_i  the current lease, the first slot of its ring, its number of slots minus one
//   lookup_i, vid_i  a packet's vid: one cycle later ahead_o is its distance from `released`, slot_o its slot, two
//                    cycles later is_next_o if it is `released` itself, goes_on_o if the vid after it was released
//   release_i        the sum of this vid leaves
//   advance_i        `released` advances by one; look_i, a cycle later: the next vid is to be checked with
//                    goes_on_o, which is valid two cycles later
//   wipe_i, clear_i  for a lease that restarts: `released` becomes 0, with a cycle of wipe_i before
//   forget_i, forget_at_i  nothing was released in a slot; last_o: the last one of the lease's ring
//
// Timing: as above; `released` itself is written at the edge of advance_i.
//
// Theory: a lease has a ring of slots, at least twice the window, a power of two. Below `released`, the lowest vid that
// is not released, are the last `window` sums, which can be added again from the port buffers. From it on, up to the
// window, are the vids being filled. For the vid that was last released in a slot, only the bit above the slot index is
// stored: it distinguishes the two possible vids.
`default_nettype none

module vid_ring #(
    parameter int LEASES = 16,
    parameter int SLOTS  = 32,
    localparam int LB    = $clog2(LEASES),
    localparam int SB    = $clog2(SLOTS)
) (
    input  wire           clk,

    input  wire  [LB-1:0] at_i,
    input  wire  [SB-1:0] base_i,
    input  wire  [SB-1:0] ring_i,
    input  wire           lookup_i,
    input  wire  [31:0]   vid_i,
    input  wire           release_i,
    input  wire           advance_i,
    input  wire           look_i,
    input  wire           wipe_i,
    input  wire           clear_i,
    input  wire           forget_i,
    input  wire  [SB-1:0] forget_at_i,

    output logic [31:0]   ahead_o,
    output logic          is_next_o,
    output logic [SB-1:0] slot_o,
    output logic          goes_on_o,
    output logic [SB-1:0] last_o
);
    logic [31:0]   lease_released [0:LEASES-1];
`ifdef FORMAL  // leases present from the start, see hw/formal/lease_model.sv
    initial for (int i = 0; i < LEASES; i++) lease_released[i] = 32'd0;
`endif
    logic          laps [0:SLOTS-1];  // bit above the ring index of the vid last released in a slot
    logic [31:0]   after;             // the vid after `released`
    logic [SB:0]   here;
    logic [SB-1:0] next_slot;
    logic          lap, next_lap;

    wire  [SB:0]   lap_bit = {1'b0, ring_i} + (SB+1)'(1);
    // Whether the vid after this one, or the candidate to skip, has been released.
    wire  [SB:0]   next_vid = look_i ? here : vid_i[SB:0] + (SB+1)'(1);

    always_ff @(posedge clk) begin
        is_next_o <= ahead_o == 32'd0;
        next_slot <= base_i + (next_vid[SB-1:0] & ring_i);
        next_lap  <= |(next_vid & lap_bit);
        goes_on_o <= laps[next_slot] == next_lap;
        last_o    <= base_i + ring_i;
        if (lookup_i) begin
            ahead_o <= vid_i - lease_released[at_i];
            slot_o  <= base_i + (vid_i[SB-1:0] & ring_i);
            lap     <= |(vid_i[SB:0] & lap_bit);
        end
        if (advance_i) here <= after[SB:0];
        if (wipe_i) after <= 32'd0;
        else if (lookup_i | advance_i) after <= (advance_i ? after : lease_released[at_i]) + 32'd1;
        if (clear_i | advance_i) lease_released[at_i] <= after;
        if (forget_i) laps[forget_at_i] <= 1'b1;
        else if (release_i) laps[slot_o] <= lap;
    end
endmodule

`default_nettype wire
