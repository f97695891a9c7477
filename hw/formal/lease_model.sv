// Replaces lease_table in proofs: leases present from the start, with any values that the driver may write.
//
// Ports: those of lease_table; writes are ignored.
//
// Timing: combinational.
//
// Theory: every field is a constant that the solver chooses. Leases have disjoint rings of two slots, at least one member,
// and at most one parent, which is no member.
`default_nettype none

module lease_table #(
    parameter int PORTS  = 2,
    parameter int LEASES = 2,
    parameter int SLOTS  = 4,
    localparam int SB    = $clog2(SLOTS),
    localparam int LB    = $clog2(LEASES),
    localparam int PB    = $clog2(PORTS)
) (
    input  wire              clk,
    input  wire              rst_n,
    input  wire              lease_write_i,
    input  wire  [LB-1:0]    lease_i,
    input  wire  [3:0]       lease_word_i,
    input  wire              child_write_i,
    input  wire  [PB-1:0]    child_port_i,
    input  wire  [1:0]       child_word_i,
    input  wire  [31:0]      data_i,
    input  wire  [LB-1:0]    at_i,
    input  wire  [PB-1:0]    child_i,
    output wire              valid_o,
    output wire  [31:0]      job_o,
    output wire  [15:0]      epoch_o,
    output wire  [7:0]       tree_o,
    output wire  [15:0]      accepted_o,
    output wire  [15:0]      announced_o,
    output wire  [SB-1:0]    ring_o,
    output wire  [SB-1:0]    base_o,
    output wire  [15:0]      elements_o,
    output wire  [PORTS-1:0] members_o,
    output wire  [PORTS-1:0] parent_o,
    output wire  [4:0]       branch_o,
    output wire  [63:0]      ranks_o
);
    localparam int BITS = 32 + 16 + 8 + 16 + 16 + 2 * PORTS;
    (* anyconst *) reg [LEASES*BITS-1:0] leases;
    (* anyconst *) reg [LEASES-1:0]      valid;
    (* anyconst *) reg [LEASES*PORTS*69-1:0] children;

    wire [BITS-1:0] one = leases[at_i*BITS +: BITS];
    assign {job_o, epoch_o, tree_o, announced_o, elements_o, members_o, parent_o} = one;
    assign {branch_o, ranks_o} = children[{at_i, child_i}*69 +: 69];
    assign valid_o    = valid[at_i];
    assign accepted_o = 16'd1;
    assign ring_o     = SB'(1);
    assign base_o     = {at_i, 1'b0};

    always @* begin
        assume (members_o != '0 && (members_o & parent_o) == '0 && (parent_o & (parent_o - PORTS'(1))) == '0);
    end
endmodule

`default_nettype wire
