// Releases that wait for the engine, first in, first out.
//
// Ports: write_i with order_i; valid_o with order_o, taken by take_i; few_o: there is room for an answer, which may be
// left out, beside a release of every slot, which may not; any_o: there is room at all.
//
// Timing: an order is on order_o one cycle after write_i if none waits before it. few_o and any_o are a cycle old.
//
// Theory: twice as many places as slots. A slot whose workers obey their window is released once before its sum has
// left, so releases alone fill at most a half; answers and notices are left out while less than the other half is free.
`default_nettype none

module order_queue #(
    parameter int SLOTS = 32,
    parameter int BITS  = 32
) (
    input  wire             clk,
    input  wire             rst_n,
    input  wire             write_i,
    input  wire  [BITS-1:0] order_i,
    output logic            few_o,
    output logic            any_o,
    output wire             valid_o,
    output wire  [BITS-1:0] order_o,
    input  wire             take_i
);
    localparam int QB = $clog2(2 * SLOTS);

    logic [BITS-1:0] queue [0:2*SLOTS-1];
    logic [QB-1:0]   in, out;
    logic [QB:0]     count;

    assign order_o = queue[out];
    assign valid_o = count != '0;

    always_ff @(posedge clk) begin
        if (write_i) queue[in] <= order_i;
        few_o <= count < (QB+1)'(SLOTS - 1);
        any_o <= count < (QB+1)'(2 * SLOTS - 1);
        if (!rst_n) begin
            in    <= '0;
            out   <= '0;
            count <= '0;
        end else begin
            if (write_i) in <= in + QB'(1);
            if (take_i) out <= out + QB'(1);
            count <= count + (QB+1)'(write_i) - (QB+1)'(take_i);
        end
    end

`ifndef SYNTHESIS
    always_ff @(posedge clk) begin
        if (rst_n) begin
            a_bounded: assert (count <= (QB+1)'(2 * SLOTS));  // never more orders than places
            a_room: assert (!write_i || count < (QB+1)'(2 * SLOTS));  // never an order without a place
            a_there: assert (!take_i || count != '0);  // never an order taken that is not there
        end
    end
`endif
endmodule

`default_nettype wire
