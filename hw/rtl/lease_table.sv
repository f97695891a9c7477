// The leases as written by the driver.
//
// Ports
//   lease_*  the driver's writes: a word of a lease (docs/accelerator-registers.md), or a child's branch and ranks
//   at_i     the current lease, child_i one of its ports: their fields are on the outputs in the same
//            cycle, ranks included
//
// Timing: written at a clock edge, read combinationally. Words are written while the lease is invalid, so that no
// partial lease is used.
//
// Theory: memories of LEASES words, one per field, and of LEASES x PORTS for the children. Only `valid` is cleared by a
// reset.
`default_nettype none

module lease_table #(
    parameter int PORTS  = 4,
    parameter int LEASES = 16,
    parameter int SLOTS  = 32,
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
    localparam int PW = (PORTS + 31) / 32;

    logic [LEASES-1:0] valid;
    logic [31:0] jobs      [0:LEASES-1];
    logic [23:0] keys      [0:LEASES-1];
    logic [31:0] windows   [0:LEASES-1];
    logic [2*SB-1:0] places [0:LEASES-1];
    logic [15:0] elements  [0:LEASES-1];
    // Distributed memory, close to its users: a block memory, which could absorb child_i's register, takes most of a
    // cycle.
    (* ram_style = "distributed" *) logic  [4:0] branches [0:LEASES*PORTS-1];
    (* ram_style = "distributed" *) logic [31:0] ranks_hi [0:LEASES*PORTS-1];
    (* ram_style = "distributed" *) logic [31:0] ranks_lo [0:LEASES*PORTS-1];
    wire  [PW*32-1:0] members, parent;

    always_ff @(posedge clk) begin
        if (lease_write_i) begin
            case (lease_word_i)
                4'd0: jobs[lease_i]     <= data_i;
                4'd1: keys[lease_i]     <= data_i[23:0];
                4'd2: windows[lease_i]  <= data_i;
                4'd3: places[lease_i]   <= {data_i[16 +: SB], data_i[0 +: SB]};
                4'd4: elements[lease_i] <= data_i[15:0];
                default: ;
            endcase
        end
        if (child_write_i) begin
            case (child_word_i)
                2'd0: branches[{lease_i, child_port_i}] <= data_i[4:0];
                2'd1: ranks_hi[{lease_i, child_port_i}] <= data_i;
                2'd2: ranks_lo[{lease_i, child_port_i}] <= data_i;
                default: ;
            endcase
        end
        if (!rst_n) valid <= '0;
        else if (lease_write_i & lease_word_i == 4'd5) valid[lease_i] <= data_i[0];
    end
    for (genvar n = 0; n < PW; n++) begin : g_ports
        logic [31:0] members_ram [0:LEASES-1];
        logic [31:0] parent_ram  [0:LEASES-1];
        always_ff @(posedge clk) begin
            if (lease_write_i & lease_word_i == 4'(8 + n)) members_ram[lease_i] <= data_i;
            if (lease_write_i & lease_word_i == 4'(12 + n)) parent_ram[lease_i] <= data_i;
        end
        assign members[32*n +: 32] = members_ram[at_i];
        assign parent[32*n +: 32]  = parent_ram[at_i];
    end

    assign valid_o                   = valid[at_i];
    assign job_o                     = jobs[at_i];
    assign {epoch_o, tree_o}         = keys[at_i];
    assign {accepted_o, announced_o} = windows[at_i];
    assign {ring_o, base_o}          = places[at_i];
    assign elements_o                = elements[at_i];
    assign members_o                 = members[PORTS-1:0];
    assign parent_o                  = parent[PORTS-1:0];
    assign branch_o                  = branches[{at_i, child_i}];
    assign ranks_o                   = {ranks_hi[{at_i, child_i}], ranks_lo[{at_i, child_i}]};
endmodule

`default_nettype wire
