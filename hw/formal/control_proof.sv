// The control block with models of the driver, the ports and the release engine, for SymbiYosys.
//
// Ports: all free, except for the assumptions below: the driver's obligations in docs/accelerator-registers.md, and the
// behaviour of rx_port and release_engine.
//
// Timing: reset in the first two cycles.
//
// Theory: the smallest shape with all behaviours: two ports, two leases with rings of two slots, and the widest bus,
// whose decisions take 6 cycles. The proved assertions are in control, decision and order_queue, and below: only
// waiting ports are answered, and orders have only members as sources and destinations.
`default_nettype none

module control_proof (
    input wire          clk,
    input wire [1:0]    pending,
    input wire [1023:0] head_data,
    input wire [1:0]    ce,
    input wire [1:0]    broken,
    input wire [9:0]    words,
    input wire [13:0]   kept,
    input wire          take_order,
    input wire          notice_sent,
    input wire          lease_write,
    input wire          lease,
    input wire [3:0]    lease_word,
    input wire          child_write,
    input wire          child_port,
    input wire [1:0]    child_word,
    input wire [31:0]   data,
    input wire          clear
);
    reg [1:0] cycle = 2'd0;
    always @(posedge clk) if (cycle != 2'd3) cycle <= cycle + 2'd1;
    wire rst_n = cycle >= 2'd2;

    wire [1:0]   answer, order_sources, order_to;
    wire         take, wide, begins, init, order_valid, order_lease, busy, outcome_valid;
    wire [1:0]   slot;
    wire [2:0]   order_slot, order_kind;
    wire [7:0]   order_vid, init_base;
    wire [4:0]   outcome;
    wire [250:0] record;
    wire [1:0]   head_word;

    control #(.W(512), .PORTS(2), .LEASES(2), .SLOTS(4), .BUF_WORDS(22)) dut (
        .clk, .rst_n, .pending_i(pending), .head_word_o(head_word), .head_data_i(head_data), .ce_i(ce),
        .broken_i(broken), .words_i(words), .kept_i(kept), .answer_o(answer), .take_o(take), .wide_o(wide),
        .slot_o(slot), .begins_o(begins), .init_o(init), .init_base_o(init_base), .order_valid_o(order_valid),
        .order_take_i(take_order & order_valid), .order_lease_o(order_lease), .order_slot_o(order_slot),
        .order_kind_o(order_kind), .order_sources_o(order_sources), .order_to_o(order_to),
        .order_vid_o(order_vid), .record_read_i(take_order & order_valid), .record_o(record),
        .notice_sent_i(notice_sent), .lease_write_i(lease_write), .lease_i(lease), .lease_word_i(lease_word),
        .child_write_i(child_write), .child_port_i(child_port), .child_word_i(child_word), .lease_data_i(data),
        .clear_i(clear), .busy_o(busy), .outcome_valid_o(outcome_valid), .outcome_o(outcome));

    // Ports: a packet waits until it is answered.
    reg [1:0] was_pending = 2'd0, was_answered = 2'd0;
    always @(posedge clk) begin
        was_pending  <= rst_n ? pending : 2'd0;
        was_answered <= rst_n ? answer : 2'd0;
    end
    always @* begin
        // An answered port may have another packet at once, which belongs to the next answer.
        if (rst_n) assume ((was_pending & ~was_answered & ~pending) == 2'd0);
        if (!rst_n) assume (pending == 2'd0);
        if (rst_n) assert ((answer & ~pending) == 2'd0);
    end

    // The driver: its writes, by lease.
    reg  [1:0] valid = 2'd0, clean = 2'd0, placed = 2'd0;
    reg  [1:0] members [0:1];
    reg  [1:0] parent [0:1];
    reg        sized [0:1];
    wire [31:0] ring = {14'd0, 2'd1, 14'd0, lease, 1'b0};
    always @(posedge clk) begin
        if (lease_write & lease_word == 4'd5) begin
            valid[lease] <= data[0];
            if (data[0]) clean[lease] <= 1'b0;
        end
        if (lease_write & lease_word == 4'd8) members[lease] <= data[1:0];
        if (lease_write & lease_word == 4'd12) parent[lease] <= data[1:0];
        if (lease_write & lease_word == 4'd3) placed[lease] <= 1'b1;
        if (lease_write & lease_word == 4'd2) sized[lease] <= data[31:16] == 16'd1;
        if (clear) clean[lease] <= 1'b1;
    end
    always @* begin
        if (!rst_n) assume (!lease_write && !child_write && !clear);
        assume (!(lease_write && clear) && !(lease_write && child_write) && !(clear && child_write));
        if (lease_write && lease_word != 4'd5) assume (!valid[lease] && !busy);
        if (lease_write && lease_word == 4'd3) assume (data == ring);
        if (lease_write && lease_word == 4'd5 && data[0]) begin
            assume (!valid[lease] && !busy && clean[lease] && placed[lease] && sized[lease]);
            assume (members[lease] != 2'd0 && (members[lease] & parent[lease]) == 2'd0 && parent[lease] != 2'd3);
        end
        if (clear) assume (!valid[lease] && !busy && placed[lease]);
        if (child_write) assume (!valid[lease] && !busy);
    end

    // The engine: a notice is sent once, after its order was taken.
    reg noticing = 1'b0;
    always @(posedge clk) begin
        if (!rst_n) noticing <= 1'b0;
        else if (take_order & order_valid & order_kind > 3'd2) noticing <= 1'b1;
        else if (notice_sent) noticing <= 1'b0;
    end
    always @* if (notice_sent) assume (noticing);
endmodule

`default_nettype wire
