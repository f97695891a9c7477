// Decides on a packet: from facts about its header, its lease and its slot, the outcome and its effects.
//
// Ports
//   refused_i, refusal_i  the packet is refused because of its own fields or those of its lease
//   below_i               its vid is below the lowest one not yet released
//   from_parent_i, resent_i  of the packet
//   known_i, agrees_i     the slot has this vid; with the same chunk, format and length
//   phase_i               of the slot
//   mine_i, complete_i    this port is already in the slot's sum; with it the sum is complete
//   outcome_o             for the counters
//   take_o                its payload is stored
//   release_o             the sum of the slot leaves
//   answer_o              it was resent after its sum left: the sum is sent again
//   asked_o               a result that has arrived already: for the children that have asked since
//   waiting_o             resent while others are missing: notify the sender
//   disagree_o            notify all neighbours
//
// Timing: combinational.
//
// Theory: the table of docs/protocol-panama.md, row by row.
`default_nettype none

module decision (
    input  wire        refused_i,
    input  wire  [4:0] refusal_i,
    input  wire        below_i,
    input  wire        from_parent_i,
    input  wire        resent_i,
    input  wire        known_i,
    input  wire        agrees_i,
    input  wire  [1:0] phase_i,
    input  wire        mine_i,
    input  wire        complete_i,
    output logic [4:0] outcome_o,
    output logic       take_o,
    output logic       release_o,
    output logic       answer_o,
    output logic       asked_o,
    output logic       waiting_o,
    output logic       disagree_o
);
`include "outcomes.svh"
`include "phases.svh"

    always_comb begin
        {take_o, release_o, answer_o, asked_o, waiting_o, disagree_o} = '0;
        outcome_o = O_CONTRIBUTION;
        if (refused_i | below_i & ~known_i) outcome_o = refusal_i;
        else if (from_parent_i) begin
            if (~known_i | phase_i == FILLING) outcome_o = O_UNEXPECTED;
            else if (phase_i == SUMMED) begin
                outcome_o = O_DUPLICATE;
                asked_o   = 1'b1;
            end else if (~agrees_i) outcome_o = O_MISMATCH;
            else begin
                outcome_o = O_RESULT;
                take_o    = 1'b1;
            end
        end else if (known_i & phase_i != FILLING) begin
            outcome_o = O_DUPLICATE;
            if (resent_i) begin
                outcome_o = O_ANSWERED;
                answer_o  = 1'b1;
            end
        end else if (known_i & mine_i) begin
            outcome_o = O_DUPLICATE;
            if (resent_i) begin
                outcome_o = O_WAITING;
                waiting_o = 1'b1;
            end
        end else if (known_i & ~agrees_i) begin
            outcome_o  = O_MISMATCH_TOLD;
            disagree_o = 1'b1;
        end else begin
            take_o    = 1'b1;
            release_o = complete_i;
            outcome_o = complete_i ? O_RELEASED : O_CONTRIBUTION;
        end
    end

`ifndef SYNTHESIS
    always_comb begin
        // At most one effect.
        a_one: assert ($countones({take_o, answer_o, asked_o, waiting_o, disagree_o}) <= 1);
        a_kept: assert (!release_o || take_o && !from_parent_i && complete_i);  // a release has a sum
    end
`endif
endmodule

`default_nettype wire
