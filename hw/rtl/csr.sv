// The driver's registers on AXI-Lite: leases, children, header templates in; shape, status and counters out.
// The table is hw/rtl/registers.toml; docs/accelerator-registers.md is made from it.
//
// Ports: s_axil_* an AXI-Lite slave of 32 bits (whole words only, no errors: an unknown address reads 0 and
// ignores writes); the rest are strobes to control and the sending ports, and their status.
//
// Timing: a write takes two cycles, a read two. Leases, children and templates are write-only.
//
// Theory: the counters are a memory of 32 words; each packet that control decides adds one to one of them. They
// start at 0 at power-up and wrap; a reset does not clear them.
`default_nettype none

module csr #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int LEASES    = 16,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 176,
    localparam int LB       = $clog2(LEASES),
    localparam int PB       = $clog2(PORTS)
) (
    input  wire               clk,
    input  wire               rst_n,

    input  wire  [19:0]       s_axil_awaddr,
    input  wire               s_axil_awvalid,
    output wire               s_axil_awready,
    input  wire  [31:0]       s_axil_wdata,
    input  wire  [3:0]        s_axil_wstrb,
    input  wire               s_axil_wvalid,
    output wire               s_axil_wready,
    output wire  [1:0]        s_axil_bresp,
    output logic              s_axil_bvalid,
    input  wire               s_axil_bready,
    input  wire  [19:0]       s_axil_araddr,
    input  wire               s_axil_arvalid,
    output wire               s_axil_arready,
    output logic [31:0]       s_axil_rdata,
    output wire  [1:0]        s_axil_rresp,
    output logic              s_axil_rvalid,
    input  wire               s_axil_rready,

    output logic              lease_write_o,
    output logic              child_write_o,
    output logic              template_write_o,
    output logic              clear_o,
    output logic [LB-1:0]     lease_o,
    output wire  [3:0]        lease_word_o,
    output logic [PB-1:0]     port_o,
    output wire  [1:0]        child_word_o,
    output wire  [4:0]        template_word_o,
    output logic [31:0]       data_o,
    input  wire               busy_i,
    input  wire               outcome_valid_i,
    input  wire  [4:0]        outcome_i
);
`include "registers.svh"

    // Writes: address and data are taken together, the strobe is on the cycle after.
    logic [4:0]  at;  // index of a word
    wire         write = s_axil_awvalid & s_axil_wvalid & ~s_axil_bvalid & s_axil_wstrb == 4'hf;
    wire         part  = s_axil_awvalid & s_axil_wvalid & ~s_axil_bvalid & s_axil_wstrb != 4'hf;

    assign s_axil_awready = write | part;
    assign s_axil_wready  = write | part;
    assign s_axil_bresp   = 2'b00;
    assign s_axil_rresp   = 2'b00;

    wire         to_leases    = s_axil_awaddr[19:12] == R_LEASES[19:12];
    wire         to_children  = s_axil_awaddr[19:16] == R_CHILDREN[19:16];
    wire         to_templates = s_axil_awaddr[19:17] == R_TEMPLATES[19:17];

    assign lease_word_o    = at[3:0];
    assign child_word_o    = at[1:0];
    assign template_word_o = at;

    always_ff @(posedge clk) begin
        if (write) begin
            at      <= s_axil_awaddr[6:2];
            lease_o <= to_templates ? s_axil_awaddr[7 +: LB] : to_children ? s_axil_awaddr[10 +: LB] :
                       to_leases ? s_axil_awaddr[6 +: LB] : s_axil_wdata[LB-1:0];
            port_o  <= to_templates ? s_axil_awaddr[11 +: PB] : s_axil_awaddr[4 +: PB];
            data_o  <= s_axil_wdata;
        end
        lease_write_o    <= rst_n & write & to_leases;
        child_write_o    <= rst_n & write & to_children;
        template_write_o <= rst_n & write & to_templates;
        clear_o          <= rst_n & write & s_axil_awaddr == R_CLEAR;
        if (!rst_n) s_axil_bvalid <= 1'b0;
        else s_axil_bvalid <= write | part | (s_axil_bvalid & ~s_axil_bready);
    end

    // Counters and reads.
    logic [31:0] outcomes [0:31];
    initial for (int i = 0; i < 32; i++) outcomes[i] = 32'd0;
    logic [31:0] fact;
    assign s_axil_arready = s_axil_arvalid & ~s_axil_rvalid;

    always_comb begin
        case (s_axil_araddr[4:2])
            R_ID[4:2]:      fact = 32'h6e73_756d;
            R_VERSION[4:2]: fact = 32'h0000_0001;
            R_SHAPE[4:2]:   fact = {16'(W), 8'(PORTS), 8'(LEASES)};
            R_MEMORY[4:2]:  fact = {16'(BUF_WORDS * (W / 8)), 16'(SLOTS)};
            R_STATUS[4:2]:  fact = {31'd0, busy_i};
            default:        fact = 32'd0;
        endcase
    end

    always_ff @(posedge clk) begin
        if (outcome_valid_i) outcomes[outcome_i] <= outcomes[outcome_i] + 32'd1;
        if (s_axil_arready) begin
            s_axil_rdata <= s_axil_araddr[19:7] == R_OUTCOMES[19:7] & s_axil_araddr[7] ?
                            outcomes[s_axil_araddr[6:2]] : s_axil_araddr[19:5] == '0 ? fact : 32'd0;
        end
        if (!rst_n) s_axil_rvalid <= 1'b0;
        else s_axil_rvalid <= s_axil_arready | (s_axil_rvalid & ~s_axil_rready);
    end
endmodule

`default_nettype wire
