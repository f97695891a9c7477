// Releases waiting for the engine, first in, first out.
//
// Ports: write_i with order_i; valid_o with order_o, taken by take_i; few_o: there is room for an answer, which may be
// dropped, beside a release of every slot, which may not; any_o: there is room at all.
//
// Timing: an order is on order_o one cycle after write_i if the queue is empty; valid_o is a register. few_o and any_o
// are delayed by three cycles; control takes longer between two orders.
//
// Theory: twice as many entries as slots. A slot whose workers obey their window is released at most once before its
// sum has left, so releases alone fill at most a half; answers and notices are dropped while less than the other half
// is free.
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
    output logic            valid_o,
    output wire  [BITS-1:0] order_o,
    input  wire             take_i
);
    localparam int QB = $clog2(2 * SLOTS);

    logic [BITS-1:0] queue [0:2*SLOTS-1];
    logic [QB:0]     in, out;  // with a wrap bit
    logic [QB:0]     count;    // delayed by a cycle
    logic            wrote, took;

    assign order_o = queue[out[QB-1:0]];
    wire             more = in != out + (QB+1)'(1);  // entries beside the offered one

    always_ff @(posedge clk) begin
        if (write_i) queue[in[QB-1:0]] <= order_i;
        few_o <= count < (QB+1)'(SLOTS - 1);
        any_o <= count < (QB+1)'(2 * SLOTS - 1);
        if (!rst_n) begin
            in      <= '0;
            out     <= '0;
            count   <= '0;
            wrote   <= 1'b0;
            took    <= 1'b0;
            valid_o <= 1'b0;
        end else begin
            if (write_i) in <= in + (QB+1)'(1);
            if (take_i) out <= out + (QB+1)'(1);
            wrote   <= write_i;
            took    <= take_i;
            count   <= count + (QB+1)'(wrote) - (QB+1)'(took);
            valid_o <= write_i | (take_i ? more : valid_o);
        end
    end

`ifndef SYNTHESIS
    wire [QB:0] level = in - out;
    always_ff @(posedge clk) begin
        if (rst_n) begin
            a_bounded: assert (level <= (QB+1)'(2 * SLOTS));  // no overflow
            a_room: assert (!write_i || level < (QB+1)'(2 * SLOTS));  // orders are written only with room
            a_there: assert (!take_i || level != '0);  // orders are taken only if present
        end
    end
`endif
endmodule

`default_nettype wire
