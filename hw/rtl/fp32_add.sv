// One IEEE-754 binary32 addition per cycle: sum = a + b.
//
// Round to nearest even, with subnormals, infinities and signed zeros; every NaN result is 7fc00000, as netsum's order
// of additions requires (crates/wire/src/reduce.rs).
//
// Ports: a, b are sampled at every rising edge, sum follows STAGES edges later. No reset, no stall: the user tracks
// what is in flight.
//
// Theory: a single path of eight stages.
//   1 compare    one subtraction, exponents above mantissas, of which three bits count as one (more, or not
//                less): which magnitude is larger, and the difference of the exponents, less what is borrowed
//   2 swap       x is the larger, y the smaller; shift amount, at most 31, which pushes all of y out. A negative
//                difference is complemented, not negated: what is missing by that and by the borrow is a shift
//                by one bit at once
//   3 align      y right by the four low bits of the amount. To an infinity or a NaN nothing is added, so a NaN
//                shows in the sum; infinities of two signs leave a bit there
//   4 add        y right by 16 if need be, x +- y; what was pushed out is one sticky bit
//   5 count      leading zero nibbles of the sum, limited by the exponent
//   6 coarse     left by nibbles
//   7 fine       left by 0 to 3 bits, limited by the exponent, which yields subnormals;
//                the exponent is reduced by both shifts
//   8 round      to nearest even; a carry goes into the exponent, up to infinity
// Exponents: a subnormal has the exponent of the smallest normal, without the hidden one.
`default_nettype none

module fp32_add (
    input  wire         clk,
    input  wire  [31:0] a,
    input  wire  [31:0] b,
    output logic [31:0] sum
);
    // 1 compare
    logic [31:0] a1, b1;
    logic        normal_a1, normal_b1;
    logic  [8:0] diff1;     // of the exponents, less one if b's mantissa is larger; negative if b is larger
    wire         normal_a = |a[30:23];
    wire         normal_b = |b[30:23];
    wire   [7:0] scale_a  = {a[30:24], a[23] | ~normal_a};
    wire   [7:0] scale_b  = {b[30:24], b[23] | ~normal_b};
    wire  [23:0] digits_a = {normal_a, a[22:0]};
    wire  [23:0] digits_b = {normal_b, b[22:0]};
    logic  [7:0] more, least;  // three bits of the mantissa to one of the sum: a's are more than b's; at least b's
    logic  [8:0] unused_low;

    always_comb begin
        for (int i = 0; i < 8; i++) begin
            more[i]  = digits_a[3*i +: 3] > digits_b[3*i +: 3];
            least[i] = digits_a[3*i +: 3] >= digits_b[3*i +: 3];
        end
    end

    always_ff @(posedge clk) begin
        a1        <= a;
        b1        <= b;
        normal_a1 <= normal_a;
        normal_b1 <= normal_b;
        {diff1, unused_low} <= {1'b0, scale_a, more, 1'b1} + {1'b1, ~scale_b, least, 1'b1};
    end

    // 2 swap
    logic [23:0] x2;
    logic [24:0] y2;  // shifted right by one bit if needed
    logic  [7:0] exponent2;
    logic        sign2, subtract2;
    logic  [4:0] amount2;
    wire         swap     = diff1[8];
    wire   [7:0] scale_a1 = {a1[30:24], a1[23] | ~normal_a1};
    wire   [7:0] scale_b1 = {b1[30:24], b1[23] | ~normal_b1};
    wire  [23:0] smaller  = swap ? {normal_a1, a1[22:0]} : {normal_b1, b1[22:0]};
    wire   [7:0] distance = diff1[7:0] ^ {8{swap}};  // less one if `one`
    wire         one      = swap ^ diff1[0] ^ scale_a1[0] ^ scale_b1[0];

    always_ff @(posedge clk) begin
        x2        <= swap ? {normal_b1, b1[22:0]} : {normal_a1, a1[22:0]};
        y2        <= one ? {1'b0, smaller} : {smaller, 1'b0};
        exponent2 <= swap ? scale_b1 : scale_a1;
        sign2     <= swap ? b1[31] : a1[31];
        subtract2 <= a1[31] ^ b1[31];
        amount2   <= distance[4:0] | {5{|distance[7:5]}};
    end

    // 3 align: two guard bits below the mantissa, the rest in `sticky`
    logic [23:0] x3;
    logic [25:0] y3;
    logic  [7:0] exponent3;
    logic        sign3, subtract3, sixteen3, sticky3, high3;
    logic [25:0] by_bits, by_nibbles;
    logic        lost_bits, lost_nibbles;
    wire         high     = &exponent2[7:2];
    wire         infinite = high & exponent2[1] & exponent2[0];

    always_comb begin
        case (amount2[1:0])
            2'd0: by_bits = {y2, 1'b0};
            2'd1: by_bits = {1'b0, y2};
            2'd2: by_bits = {2'b0, y2[24:1]};
            2'd3: by_bits = {3'b0, y2[24:2]};
        endcase
        lost_bits = amount2[1] & (y2[0] | amount2[0] & y2[1]);
        case (amount2[3:2])
            2'd0: by_nibbles = by_bits;
            2'd1: by_nibbles = {4'b0, by_bits[25:4]};
            2'd2: by_nibbles = {8'b0, by_bits[25:8]};
            2'd3: by_nibbles = {12'b0, by_bits[25:12]};
        endcase
        case (amount2[3:2])
            2'd0: lost_nibbles = 1'b0;
            2'd1: lost_nibbles = |by_bits[3:0];
            2'd2: lost_nibbles = |by_bits[7:0];
            2'd3: lost_nibbles = |by_bits[11:0];
        endcase
    end

    always_ff @(posedge clk) begin
        x3        <= x2;
        exponent3 <= exponent2;
        sign3     <= sign2;
        subtract3 <= subtract2;
        sixteen3  <= amount2[4];
        high3     <= high;
        // Adding to an infinity or a NaN changes nothing; the sum of two infinities with different signs is a NaN, so
        // one bit is left.
        if (infinite) y3 <= '0;
        else y3 <= by_nibbles;
        sticky3   <= infinite ? subtract2 & by_nibbles[25] & ~amount2[4] : lost_bits | lost_nibbles;
    end

    // 4 add
    logic [27:0] sum4;
    logic  [7:0] exponent4;
    logic  [2:0] limit4;  // nibbles allowed by the exponent, at most 7
    logic        sign4, subtract4, high4;
    wire  [25:0] y      = sixteen3 ? {16'b0, y3[25:16]} : y3;
    wire         sticky = sticky3 | (sixteen3 & |y3[15:0]);
    wire         borrow = subtract3 & ~sticky;
    wire  [26:0] total;
    wire         unused_borrow;
    assign {total, unused_borrow} = {1'b0, x3, 2'b0, borrow} + {{1'b0, y} ^ {27{subtract3}}, borrow};

    always_ff @(posedge clk) begin
        sum4      <= {total, sticky};
        exponent4 <= exponent3;
        limit4    <= exponent3[4:2] | {3{|exponent3[7:5]}};
        sign4     <= sign3;
        subtract4 <= subtract3;
        high4     <= high3;
    end

    // 5 count
    logic [27:0] sum5;
    logic  [7:0] exponent5;
    logic  [2:0] nibbles5;
    logic        sign5, special5, nan5, bound5;
    logic  [2:0] nibbles;
    wire   [6:0] used = {|sum4[27:24], |sum4[23:20], |sum4[19:16], |sum4[15:12],
                         |sum4[11:8], |sum4[7:4], |sum4[3:0]};
    wire         bound = limit4 <= nibbles;  // no nibble of the exponent is left

    always_comb begin
        casez (used)
            7'b1??????: nibbles = 3'd0;
            7'b01?????: nibbles = 3'd1;
            7'b001????: nibbles = 3'd2;
            7'b0001???: nibbles = 3'd3;
            7'b00001??: nibbles = 3'd4;
            7'b000001?: nibbles = 3'd5;
            default:    nibbles = 3'd6;
        endcase
    end

    always_ff @(posedge clk) begin
        sum5      <= sum4;
        exponent5 <= exponent4;
        nibbles5  <= bound ? limit4 : nibbles;
        bound5    <= bound;
        sign5     <= sign4 & ~(subtract4 & ~|used);
        // Infinite already, or by the carry: a sum without carry reduces its exponent by at least one.
        special5  <= high4 & exponent4[1] & (exponent4[0] | sum4[27]);
        nan5      <= high4 & exponent4[1] & exponent4[0] & (|sum4[25:24] | |used[5:0]);
    end

    // 6 coarse
    logic [27:0] sum6;
    logic  [7:0] exponent6;
    logic  [2:0] nibbles6;
    logic        sign6, special6, nan6, bound6;
    wire  [27:0] by_one = nibbles5[1:0] == 2'd0 ? sum5 :
                          nibbles5[1:0] == 2'd1 ? {sum5[23:2], 6'b0} :
                          nibbles5[1:0] == 2'd2 ? {sum5[19:2], 10'b0} : {sum5[15:2], 14'b0};

    always_ff @(posedge clk) begin
        sum6[27:16] <= nibbles5[2] ? by_one[11:0] : by_one[27:16];
        if (nibbles5[2]) sum6[15:0] <= '0;
        else sum6[15:0] <= by_one[15:0];
        exponent6 <= exponent5;
        nibbles6  <= nibbles5;
        bound6    <= bound5;
        if (nan5) sign6 <= 1'b0;
        else sign6 <= sign5;
        special6  <= special5;
        nan6      <= nan5;
    end

    // 7 fine: a one at the top is the hidden one of exponent7 + 1
    logic [26:0] sum7;
    logic  [7:0] exponent7;
    logic        sign7, special7, nan7;
    wire   [1:0] zeros = sum6[27] ? 2'd0 : sum6[26] ? 2'd1 : sum6[25] ? 2'd2 : 2'd3;
    wire   [1:0] bits  = bound6 && exponent6[1:0] < zeros ? exponent6[1:0] : zeros;
    logic [27:0] by_bit;

    always_comb begin
        case (bits)
            2'd0: by_bit = sum6;
            2'd1: by_bit = {sum6[26:0], 1'b0};
            2'd2: by_bit = {sum6[25:0], 2'b0};
            2'd3: by_bit = {sum6[24:0], 3'b0};
        endcase
    end

    always_ff @(posedge clk) begin
        sum7      <= {by_bit[27:2], |by_bit[1:0]};
        if (~|sum6[27:24]) exponent7 <= 8'd0;  // the sum is 0, or subnormal
        else exponent7 <= exponent6 - {3'd0, nibbles6, bits};
        sign7     <= sign6;
        special7  <= special6;
        nan7      <= nan6;
    end

    // 8 round: {top, mantissa, half, below half}
    wire up       = sum7[2] & (sum7[1] | sum7[0] | sum7[3]);
    wire [30:0] rounded = {exponent7, sum7[25:3]} + {7'd0, sum7[26], 22'd0, up};

    always_ff @(posedge clk) begin
        sum <= {sign7, special7 ? {8'hff, nan7, 22'd0} : rounded};
    end
endmodule

`default_nettype wire
