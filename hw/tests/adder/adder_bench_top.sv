// Top module of the adder bench: one adder and one tree of four positions.
`default_nettype none

module adder_bench_top (
    input  wire         clk,
    input  wire  [31:0] a,
    input  wire  [31:0] b,
    output wire  [31:0] sum,
    input  wire [127:0] terms,
    output wire  [31:0] tree_sum
);
    fp32_add add (.clk(clk), .a(a), .b(b), .sum(sum));
    fp32_tree #(.PORTS(4)) tree (.clk(clk), .terms(terms), .sum(tree_sum));
endmodule

`default_nettype wire
