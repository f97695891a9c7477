// Assertions of the stream protocol: in simulation and in formal proofs only, omitted in synthesis.
//
// Ports: one AXI-Stream, monitored.
//
// Timing: at every rising edge outside reset.
//
// Theory: once offered, a word is stable until it is taken; tkeep is contiguous, and all ones except in a frame's last
// word; nothing is offered in reset.
`default_nettype none

module axis_check #(
    parameter int W  = 64,
    localparam int B = W / 8
) (
    input wire         clk,
    input wire         rst_n,
    input wire [W-1:0] tdata,
    input wire [B-1:0] tkeep,
    input wire         tlast,
    input wire         tvalid,
    input wire         tready
);
`ifndef SYNTHESIS
    logic         waits;
    logic [W-1:0] data;
    logic [B-1:0] keep;
    logic         last;
    logic [W-1:0] known, held;  // data of the valid bytes

    always_comb begin
        for (int i = 0; i < B; i++) begin
            known[8*i +: 8] = tdata[8*i +: 8] & {8{tkeep[i]}};
            held[8*i +: 8]  = data[8*i +: 8] & {8{keep[i]}};
        end
    end

    always_ff @(posedge clk) begin
        if (rst_n) begin
            if (waits) begin
                a_offered: assert (tvalid);  // an offered word is not withdrawn
                a_steady: assert (known === held && tkeep == keep && tlast == last);  // an offered word is stable
            end
            if (tvalid) begin
                a_holes: assert (tkeep != '0 && (tkeep & (tkeep + B'(1))) == '0);  // tkeep is contiguous
                a_partial: assert (tlast || &tkeep);  // partial words only at a frame's end
            end
        end
        waits <= rst_n & tvalid & ~tready;
        data  <= tdata;
        keep  <= tkeep;
        last  <= tlast;
    end
`endif
endmodule

`default_nettype wire
