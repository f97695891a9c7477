// Releases sums: takes orders from control, reads the port buffers of all sources in lockstep, adds, and writes one
// frame to all destinations.
//
// Ports
//   order_*    the next order: lease, slot, kind of packet, sources and destinations as port bitmaps, and the low
//              bits of the vid: an order whose slot has another vid by now is dropped (an answer that has waited
//              until it is no longer needed, or workers that exceed their window)
//   begins_*   a slot gets another vid: an order for it that has been taken and waits for room is dropped too
//   record_*   the slot's record (see control), two cycles after record_read_o
//   load_o, step_o, ...  to the receiving ports; terms_i is W bits of every port, port 0 in the low bits
//   write_o, word_o, ... to the sending ports (see sum_queue); room_i of each
//   notice_sent_o  the notice's record may be reused
//
// Timing: W/32 sums per cycle. A frame takes as many cycles as it has words (float32), without a gap to the
// next if it has at least about 8 log2(PORTS) words. First word out: 8 log2(PORTS) + 6 - HEAD cycles after
// load_o, where HEAD is 80 bytes in words.
//
// Theory: two loops. The first fetches an order and its record while the previous frame is added. The second issues one
// step per cycle to the ports: memory, terms, adder tree and packing have no stall, so an order starts only once every
// destination has room for all of it. The header is made at the end of the pipeline, in the cycles before the first sum
// arrives there; the issue of the next order leaves as many cycles free.
`default_nettype none

module release_engine #(
    parameter int W      = 64,
    parameter int PORTS  = 4,
    parameter int LEASES = 16,
    parameter int SLOTS  = 32,
    parameter int BUF_WORDS = 176,
    parameter int RECORD = 251,
    localparam int B     = W / 8,
    localparam int PAD   = (B - 80 % B) % B,
    localparam int HEAD  = (80 + PAD) / B,
    localparam int HB    = HEAD < 2 ? 1 : $clog2(HEAD),
    localparam int CB    = $clog2(B),
    localparam int LANES = W / 32,
    localparam int LB    = $clog2(LEASES),
    localparam int SB    = $clog2(SLOTS),
    localparam int NB    = $clog2(HEAD + BUF_WORDS + 1),  // bits of a frame's number of words
    localparam int EB    = NB + CB                 // bits of a count of bytes
) (
    input  wire                clk,
    input  wire                rst_n,

    input  wire                order_valid_i,
    output wire                order_take_o,
    input  wire  [LB-1:0]      order_lease_i,
    input  wire  [SB:0]        order_slot_i,
    input  wire  [2:0]         order_kind_i,
    input  wire  [PORTS-1:0]   order_sources_i,
    input  wire  [PORTS-1:0]   order_to_i,
    input  wire  [7:0]         order_vid_i,

    input  wire                begins_i,
    input  wire  [SB-1:0]      begins_slot_i,

    output wire                record_read_o,
    input  wire  [RECORD-1:0]  record_i,

    output logic               load_o,
    output wire  [SB-1:0]      slot_o,
    output logic [PORTS-1:0]   sources_o,
    output logic               half_o,
    output logic               step_o,
    input  wire  [PORTS*W-1:0] terms_i,

    input  wire  [PORTS-1:0]   room_i,
    output logic [PORTS-1:0]   write_o,
    output logic [W-1:0]       word_o,
    output logic               first_o,
    output wire  [NB-1:0]      words_o,
    output wire  [CB-1:0]      count_o,
    output wire  [LB-1:0]      lease_o,
    output wire                notice_sent_o,
    output wire                idle_o
);
    localparam int ADD     = 5 + 8 * $clog2(PORTS);  // from a step to the sums, with one cycle for rounding
    localparam int DELAY   = ADD - 1 - HEAD;         // from a start to the cycle before the header
    localparam logic [2:0] PARTIAL = 3'd1, WAITING = 3'd3;

    // The record; see slot_book.
    wire [31:0] vid, chunk, marks, job;
    wire [15:0] n_elems, window_cap, epoch;
    wire [63:0] missing;
    wire  [7:0] tree;
    wire        bf16, resent, congested;
    assign {resent, congested, vid, chunk, bf16, n_elems, marks, window_cap, missing, job, tree, epoch} =
        record_i;

    // Fetching: order, record, lengths.
    typedef enum logic [2:0] {IDLE, READ, WAIT, LENGTH, READY} fetch_e;
    fetch_e             fetch;
    logic  [LB-1:0]     next_lease;
    logic  [SB:0]       next_slot;
    logic  [2:0]        next_kind;
    logic  [PORTS-1:0]  next_to;
    logic  [7:0]        next_vid;
    logic  [EB-1:0]     next_bytes;
    logic  [NB-1:0]     next_steps;
    logic               next_half;
    logic               header_waits;
    wire                notice = next_kind > 3'd2;
    // At most a buffer's capacity, which control has checked.
    wire   [EB-2:0]     elements = notice ? '0 : n_elems[EB-2:0];
    wire                start;

    assign order_take_o  = fetch == IDLE & order_valid_i & ~header_waits;
    assign record_read_o = order_take_o;
    assign slot_o        = next_slot[SB-1:0];

    always_ff @(posedge clk) begin
        if (order_take_o) begin
            next_lease <= order_lease_i;
            next_slot  <= order_slot_i;
            next_kind  <= order_kind_i;
            next_to    <= order_to_i;
            next_vid   <= order_vid_i;
            sources_o  <= order_sources_i;
        end
        if (fetch == LENGTH) begin
            next_bytes <= bf16 & next_kind != PARTIAL ? {elements, 1'b0} : {elements[EB-3:0], 2'b0};
            next_steps <= NB'((elements + (EB-1)'(LANES - 1)) >> $clog2(LANES));
            next_half  <= bf16;
        end
        if (!rst_n | fetch != IDLE & begins_i & begins_slot_i == next_slot[SB-1:0] & ~notice) fetch <= IDLE;
        else case (fetch)
            IDLE:    if (order_take_o) fetch <= READ;
            READ:    fetch <= WAIT;
            WAIT:    fetch <= LENGTH;
            LENGTH:  fetch <= vid[7:0] == next_vid ? READY : IDLE;
            default: if (start) fetch <= IDLE;
        endcase
    end

    // Issue: steps, then the cycles in which the next frame's header is written.
    logic [NB-1:0]    left;  // remaining steps, complemented
    logic [HB:0]      gap;
    logic             pack, half, stepping, clear;
    logic [EB-1:0]    bytes;
    logic [2:0]       kind;
    logic [PORTS-1:0] to;
    logic [LB-1:0]    lease;
    wire              last_step = &left[NB-1:1] & ~left[0];
    wire              may_start = gap == '0;

    assign start = fetch == READY & may_start & clear;

    always_ff @(posedge clk) begin
        // To the ports, a cycle later because of the distance.
        load_o <= start;
        step_o <= stepping;
        half_o <= half;
        clear  <= (next_to & ~room_i) == '0;
        if (start) begin
            kind   <= next_kind;
            to     <= next_to;
            lease  <= next_lease;
            bytes  <= next_bytes;
            half   <= next_half;
            pack   <= next_half & next_kind != PARTIAL;
        end
        if (!rst_n) begin
            left         <= '1;
            stepping     <= 1'b0;
            gap          <= '0;
            header_waits <= 1'b0;
        end else begin
            if (start) begin
                left <= ~next_steps;
                gap  <= (HB+1)'(HEAD - 1);
            end else if (stepping) begin
                left <= left + NB'(1);
            end else if (gap != '0) begin
                gap <= gap - (HB+1)'(1);
            end
            stepping     <= start ? ~notice : stepping & ~last_step;
            header_waits <= start | (header_waits & ~header_ends);
        end
    end

    // Status of the pipeline's contents.
    logic [ADD-2:0]   valid_at;
    logic [ADD-1:0]   last_at;
    logic [DELAY-1:0] start_at;
    always_ff @(posedge clk) begin
        valid_at <= {valid_at[ADD-3:0], stepping};
        last_at  <= {last_at[ADD-2:0], last_step};
        start_at <= DELAY'({start_at, start});
    end

    // The adder trees, one per lane.
    wire [W-1:0] sums;
    for (genvar lane = 0; lane < LANES; lane++) begin : g_lane
        wire [PORTS*32-1:0] terms;
        for (genvar p = 0; p < PORTS; p++) begin : g_term
            assign terms[32*p +: 32] = terms_i[W*p + 32*lane +: 32];
        end
        fp32_tree #(.PORTS(PORTS)) tree (.clk(clk), .terms(terms), .sum(sums[32*lane +: 32]));
    end

    logic         pack_q, pack_sums;
    wire  [W-1:0] packed_word;
    wire          packed_valid;
    bf16_pack #(.W(W)) packer (
        .clk(clk), .rst_n(rst_n), .sums_i(sums), .valid_i(valid_at[ADD-2]), .last_i(last_at[ADD-1]),
        .pack_i(pack_sums), .word_o(packed_word), .valid_o(packed_valid));

    // The header, then the sums.
    logic [HB-1:0]    head_word;
    logic             head, head_q, first_q;
    logic [W-1:0]     head_data;
    logic [NB-1:0]    words;
    logic [EB:0]      udp_bytes, ip_bytes;
    wire  [15:0]      udp_length = {{15-EB{1'b0}}, udp_bytes};
    wire  [15:0]      ip_length  = {{15-EB{1'b0}}, ip_bytes};
    logic [CB-1:0]    bytes_q;
    logic [2:0]       kind_q;
    logic [PORTS-1:0] to_q, to_write;
    logic [LB-1:0]    lease_q;
    logic [639:0]     header;
    wire [PAD*8+639:0] padded = (PAD*8+640)'(header) << (PAD * 8);

    function automatic logic [15:0] be16(input logic [15:0] v);
        be16 = {v[7:0], v[15:8]};
    endfunction
    function automatic logic [31:0] be32(input logic [31:0] v);
        be32 = {be16(v[15:0]), be16(v[31:16])};
    endfunction

    always_comb begin
        header = '0;
        header[8*16 +: 16] = be16(ip_length);
        header[8*18 +: 16] = be16(~ip_length);
        header[8*38 +: 16] = be16(udp_length);
        header[8*42 +: 8]  = 8'h11;
        header[8*43 +: 8]  = {2'b00, congested, resent, 1'b0, kind_q};
        header[8*44 +: 8]  = tree;
        header[8*45 +: 8]  = {2'b00, bf16, 5'd0};
        header[8*46 +: 32] = be32(job);
        header[8*50 +: 32] = be32(vid);
        header[8*54 +: 32] = be32(chunk);
        header[8*58 +: 16] = be16(epoch);
        header[8*60 +: 16] = be16(window_cap);
        header[8*62 +: 16] = kind_q == WAITING ? 16'd0 : be16(n_elems);
        header[8*64 +: 32] = be32(marks);
        header[8*68 +: 64] = {be32(missing[31:0]), be32(missing[63:32])};
    end

    wire   header_sent   = head & head_word == HB'(HEAD - 1);
    // The next record arrives two cycles after its order is taken.
    wire   header_ends   = head & head_word == HB'(HEAD - 2);
    assign notice_sent_o = header_sent & kind_q > 3'd2;
    assign words_o       = words;
    assign count_o       = bytes_q - CB'(1);
    assign lease_o       = lease_q;
    assign idle_o        = fetch == IDLE & may_start & ~header_waits;

    always_ff @(posedge clk) begin
        if (start_at[DELAY-1]) begin
            kind_q    <= kind;
            to_q      <= to;
            lease_q   <= lease;
            bytes_q   <= bytes[CB-1:0];
            udp_bytes <= {1'b0, bytes} + (EB+1)'(46);
            ip_bytes  <= {1'b0, bytes} + (EB+1)'(66);
            // Minus the frame's words: ~(whole + 1) + 1 - HEAD, and minus one if the last word is partial.
            words     <= ~bytes[EB-1:CB] - NB'(HEAD - 1) - NB'(|bytes[CB-1:0]);
            pack_q    <= pack;
        end
        if (!rst_n) begin
            head      <= 1'b0;
            head_word <= '0;
        end else begin
            head      <= start_at[DELAY-1] | (head & ~header_sent);
            head_word <= head & ~header_sent ? head_word + HB'(1) : '0;
        end
        head_data <= head ? padded[32'(head_word)*W +: W] : '0;
        head_q    <= head;
        // The last sums of the previous frame still leave while the next header begins.
        {pack_sums, to_write} <= {pack_q, to_q};
        first_q   <= head & head_word == '0;
        first_o   <= first_q;
        word_o    <= head_data | packed_word;
        write_o   <= rst_n & (head_q | packed_valid) ? to_write : '0;
    end

`ifndef SYNTHESIS
    if (DELAY < 1) begin : g_shape
        $error("sums are ready before their header");
    end

    always_ff @(posedge clk) begin
        if (rst_n) begin
            a_apart: assert (!(head_q && packed_valid));  // a header does not overlap the previous frame's sums
            a_served: assert (!start || next_to != '0);  // sums have destinations
        end
    end
`endif
endmodule

`default_nettype wire
