// The sum of PORTS binary32 numbers in netsum's one order of additions: the balanced binary tree over
// positions, ((0+1)+(2+3))+((4+5)+...), one sum per cycle.
//
// Ports: terms is PORTS numbers, position 0 in the low bits, -0 (80000000) for absent contributions; sum follows LEVELS
// x 8 rising edges later, LEVELS = log2(PORTS). No reset, no stall.
//
// Theory: PORTS is a power of two. The right half of the positions joins the left half. -0 is the identity of IEEE
// addition, so an empty position changes no bit, and a wider tree with empty positions agrees with a narrower one. A
// single number also passes an adder: NaNs become canonical.
`default_nettype none

module fp32_tree #(
    parameter int PORTS = 4
) (
    input  wire                 clk,
    input  wire  [PORTS*32-1:0] terms,
    output logic         [31:0] sum
);
    if (PORTS == 2) begin : g_pair
        fp32_add add (.clk(clk), .a(terms[31:0]), .b(terms[63:32]), .sum(sum));
    end else begin : g_halves
        wire [31:0] left, right;
        fp32_tree #(.PORTS(PORTS / 2)) low (
            .clk(clk), .terms(terms[PORTS*16-1:0]), .sum(left));
        fp32_tree #(.PORTS(PORTS / 2)) high (
            .clk(clk), .terms(terms[PORTS*32-1:PORTS*16]), .sum(right));
        fp32_add add (.clk(clk), .a(left), .b(right), .sum(sum));
    end
endmodule

`default_nettype wire
