// Sums to result words: binary32 as they are, or rounded to bfloat16, two steps to a word.
//
// Ports: sums_i is LANES binary32 numbers, valid_i with them; one cycle later their properties: last_i the frame's last
// step, pack_i: the frame is bfloat16. A word is on word_o with valid_o in that cycle; without a sum it is 0. The sums
// of a bfloat16 frame arrive without a gap.
//
// Theory: bfloat16 is the high half; rounding is to nearest even, and a carry propagates into the exponent. The adders
// produce no NaN but 7fc00000, which rounds to the canonical 7fc0. The first of two steps waits in the low half of the
// word; an unpaired last step leaves the high half unchanged, beyond the frame's end.
`default_nettype none

module bf16_pack #(
    parameter int W      = 64,
    localparam int LANES = W / 32
) (
    input  wire          clk,
    input  wire          rst_n,
    input  wire  [W-1:0] sums_i,
    input  wire          valid_i,
    input  wire          last_i,
    input  wire          pack_i,
    output wire  [W-1:0] word_o,
    output wire          valid_o
);
    logic [W-1:0]     sums;
    logic [LANES-1:0] up;
    logic [W/2-1:0]   halves, first;
    logic             valid, second;

    always_comb begin
        for (int i = 0; i < LANES; i++) halves[16*i +: 16] = sums[32*i+16 +: 16] + {15'd0, up[i]};
    end

    assign word_o  = ~pack_i ? sums : second ? {halves, first} : {halves, halves};
    assign valid_o = valid & (~pack_i | second | last_i);

    always_ff @(posedge clk) begin
        valid <= valid_i;
        // Invalid sums are 0 already, so no masking is needed downstream.
        if (!valid_i) begin
            sums <= '0;
            up   <= '0;
        end else begin
            sums <= sums_i;
            for (int i = 0; i < LANES; i++) up[i] <= sums_i[32*i+15] & (sums_i[32*i+16] | |sums_i[32*i +: 15]);
        end
        first <= halves;
        if (!rst_n) second <= 1'b0;
        else if (valid) second <= pack_i & ~second & ~last_i;
    end

`ifndef SYNTHESIS
    always_ff @(posedge clk) a_gap: assert (!rst_n || valid || !second);  // no gap within a pair
`endif
endmodule

`default_nettype wire
