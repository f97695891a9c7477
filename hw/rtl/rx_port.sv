// One port's receiving side: separates aggregation packets from all others, passes the others on, stores payloads in
// the port buffer, and feeds them to the adders.
//
// Ports
//   s_*        frames from the wire (AXI-Stream, byte 0 in the low bits; s_terror with the last word: bad FCS)
//   m_*        other frames, unchanged, in order
//   pending_o  a whole aggregation packet waits for control: its header is read word by word through
//              head_word_i / head_data_o (same cycle), its facts are on ce_o, broken_o, and as the payload's length
//              words_o whole words and kept_o bytes
//   answer_i   control has processed it; with take_i its buffer becomes that of slot_i
//   init_i     slot_i gets the buffer at init_base_i; used once, after reset
//   load_i     the release engine starts on the buffer of read_slot_i; step_i: advance one step. The step's
//              LANES terms are on terms_o three edges after its step_i
//
// Timing: a bypassed word leaves 7 cycles after its arrival with a bus of 64 bits, 2 with 512, as long as the receiver
// takes it. One word per cycle in either direction.
//
// Theory: a packet is classified at byte 45. Until then words wait in a FIFO of 16, and are offered up to the last one
// whose frame is classified; the verdict is stored with the frame's first word. The payload of an aggregation packet
// goes to a spare buffer before it is known whether it is accepted: a slot's buffer is then exchanged with the spare,
// or the spare is reused. So nothing is copied, no broken or refused frame touches a slot, and there are always as many
// buffers as slots and two more: one packet may be under decision while the next arrives.
`default_nettype none

module rx_port #(
    parameter int W         = 64,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 176,
    localparam int B        = W / 8,
    localparam int PAD      = (B - 80 % B) % B,
    localparam int HEAD     = (80 + PAD) / B,
    localparam int HB       = HEAD < 2 ? 1 : $clog2(HEAD + 1),
    localparam int CB       = $clog2(B) + 1,
    localparam int LANES    = W / 32,
    localparam int SB       = $clog2(SLOTS),
    localparam int STRIDE   = BUF_WORDS + 1,  // a buffer, and a word for overlong payloads
    localparam int NOTHING  = (SLOTS + 2) * STRIDE,  // a word of -0, behind the buffers
    localparam int DEPTH    = NOTHING + 1,
    localparam int AB       = $clog2(DEPTH),
    localparam int WB       = $clog2(BUF_WORDS + 1)
) (
    input  wire              clk,
    input  wire              rst_n,

    input  wire  [W-1:0]     s_tdata,
    input  wire  [B-1:0]     s_tkeep,
    input  wire              s_tlast,
    input  wire              s_terror,
    input  wire              s_tvalid,
    output wire              s_tready,

    output wire  [W-1:0]     m_tdata,
    output wire  [B-1:0]     m_tkeep,
    output wire              m_tlast,
    output wire              m_terror,
    output wire              m_tvalid,
    input  wire              m_tready,

    output wire              pending_o,
    input  wire  [HB-1:0]    head_word_i,
    output wire  [W-1:0]     head_data_o,
    output wire              ce_o,
    output wire              broken_o,
    output wire  [WB-1:0]    words_o,
    output wire  [CB-1:0]    kept_o,
    input  wire              answer_i,
    input  wire              take_i,
    input  wire              wide_i,
    input  wire  [SB-1:0]    slot_i,
    input  wire              init_i,
    input  wire  [AB-1:0]    init_base_i,

    input  wire              load_i,
    input  wire  [SB-1:0]    read_slot_i,
    input  wire              source_i,
    input  wire              half_i,
    input  wire              step_i,
    output logic [W-1:0]     terms_o
);
    localparam int CLASS = 45 / B;  // the word with byte 45
    localparam int IB    = $clog2(CLASS + 2);
    localparam int FB    = W + B + 2;

    // Classification of the arriving word, byte by byte.
    logic [IB-1:0] in_word;
    logic          fits_q, ce_q;
    logic          fits, ce;

    function automatic logic allowed(input int at, input logic [7:0] value);
        case (at)
            12: allowed = value == 8'h08;               // EtherType IPv4
            13: allowed = value == 8'h00;
            14: allowed = value == 8'h45;               // no IP options
            15: allowed = value[7:2] == 6'd56;          // DSCP
            20: allowed = value[5:0] == 6'd0;           // no fragment
            21: allowed = value == 8'h00;
            23: allowed = value == 8'd17;               // UDP
            42: allowed = value == 8'h11;               // protocol and version
            43: allowed = value[7:6] == 2'd0 && value[3:0] < 4'd3;
            45: allowed = value == 8'h00 || value == 8'h20;
            default: allowed = 1'b1;
        endcase
    endfunction

    always_comb begin
        fits = in_word == 0 ? 1'b1 : fits_q;
        ce   = ce_q;
        for (int at = 12; at <= 45; at++) begin
            if (in_word == IB'(at / B)) begin
                fits = fits & allowed(at, s_tdata[8*(at%B) +: 8]);
                if (at == 15) ce = s_tdata[8*(at%B) +: 2] == 2'b11;
            end
        end
        // A frame that ends before byte 45 is not an aggregation packet.
        fits = fits & (in_word != IB'(CLASS) ? ~s_tlast : s_tkeep[45%B]);
    end

    // Words, and the verdict of each frame at the index of its first word.
    logic [FB-1:0] fifo [0:15];
    logic    [1:0] verdicts [0:15];
    logic    [4:0] fifo_in, fifo_judged, fifo_out;
    logic    [3:0] frame_in;  // index of the arriving frame's first word
    logic          judged;
    wire           take_word = s_tvalid & s_tready;
    wire           judge     = take_word & ~judged & (s_tlast | in_word == IB'(CLASS));
    logic          have, starts;
    logic    [1:0] verdict;
    wire  [FB-1:0] word      = fifo[fifo_out[3:0]];
    wire           ours      = have & verdict[0];
    wire           pop;
    wire     [4:0] next_in   = fifo_in + 5'd1;
    wire     [4:0] next_out  = fifo_out + 5'd1;
    // The next word to offer: behind the offered one, or this one. pop is late.
    wire           more      = fifo_judged != (have ? next_out : fifo_out);

    assign s_tready = ~(fifo_in[4] != fifo_out[4] && fifo_in[3:0] == fifo_out[3:0]);
    assign {m_terror, m_tlast, m_tkeep, m_tdata} = word;
    assign m_tvalid = have & ~verdict[0];

    always_ff @(posedge clk) begin
        if (take_word) fifo[fifo_in[3:0]] <= {s_terror, s_tlast, s_tkeep, s_tdata};
        if (judge) verdicts[frame_in] <= {ce, fits};
        if (take_word) begin
            fits_q <= fits;
            ce_q   <= ce;
        end
        if (pop & m_tlast) verdict <= verdicts[next_out[3:0]];
        else if (starts) verdict <= verdicts[fifo_out[3:0]];
        if (!rst_n) begin
            {fifo_in, fifo_judged, fifo_out} <= '0;
            frame_in <= '0;
            have     <= 1'b0;
            starts   <= 1'b1;
            in_word  <= '0;
            judged   <= 1'b0;
        end else begin
            if (take_word) begin
                fifo_in <= next_in;
                judged  <= (judged | judge) & ~s_tlast;
                in_word <= s_tlast ? '0 : in_word == IB'(CLASS + 1) ? in_word : in_word + IB'(1);
                if (s_tlast) frame_in <= next_in[3:0];
                if (judged | judge) fifo_judged <= next_in;
            end
            // Words that arrive in this cycle are visible two cycles later: have and verdict are registers.
            have <= have & ~pop | more;
            if (pop) begin
                fifo_out <= next_out;
                starts   <= m_tlast;
            end
        end
    end

    // Aggregation packets, so that the payload starts with a word.
    wire  [W-1:0] c_data;
    wire  [B-1:0] c_keep;
    wire          c_last, c_valid, c_error, c_take;
    if (PAD == 0) begin : g_aligned
        assign {c_data, c_keep, c_last, c_error} = {m_tdata, m_tkeep, m_tlast, m_terror};
        assign c_valid = ours;
        assign c_take  = open;
    end else begin : g_late
        logic error_q;
        axis_late #(.W(W)) late (
            .clk, .rst_n, .s_tdata(m_tdata), .s_tkeep(m_tkeep), .s_tlast(m_tlast), .s_tvalid(ours),
            .s_tready(c_take), .m_tdata(c_data), .m_tkeep(c_keep), .m_tlast(c_last), .m_tvalid(c_valid),
            .m_tready(open));
        // Only a last word has an error, and the next word is the end of the same frame.
        always_ff @(posedge clk) if (c_take) error_q <= m_terror;
        assign c_error = c_take ? m_terror : error_q;
    end

    // An aggregation packet goes to the spare buffer `half`, its header to a separate memory.
    logic  [W-1:0]  heads [0:2*(1<<HB)-1];
    (* no_rw_check *) logic [W-1:0] buffer [0:(1<<AB)-1];  // a power of two: no multiplexer behind it
    initial buffer[NOTHING] = {LANES{32'h8000_0000}};
    logic  [AB:0]   map [0:SLOTS-1];
    logic  [AB-1:0] spare [0:1];
    logic  [1+CB+WB:0] facts [0:1];
    logic  [1:0]    pending;
    logic           half, serve, open;  // open: ~pending[half], a register because of its fan-out
    logic  [HB-1:0] out_word;
    logic  [AB-1:0] write_at;
    logic  [WB-1:0] words;
    logic  [CB-1:0] kept;
    wire            collect  = c_valid & open;
    wire            in_head  = out_word != HB'(HEAD);
    wire            overflow = words == WB'(BUF_WORDS);
    wire   [AB:0]   exchanged = map[slot_i];
    logic           ce_kept;
    wire            frame_ce = c_take ? verdict[1] : ce_kept;

    assign pop         = ours & c_take | m_tvalid & m_tready;
    assign pending_o   = pending[serve];
    assign head_data_o = heads[{serve, head_word_i}];
    assign {ce_o, broken_o, words_o, kept_o} = facts[serve];

    always_comb begin
        // The number of ones in c_keep, which is contiguous.
        kept = '0;
        for (int bits = 0; bits < CB; bits++) begin
            for (int i = (1 << bits) - 1; i < B; i += 2 << bits) begin
                kept[bits] = kept[bits] | c_keep[i] & ~(i + (1 << bits) < B ? c_keep[(i + (1 << bits)) % B] : 1'b0);
            end
        end
    end

    always_ff @(posedge clk) begin
        if (c_take) ce_kept <= verdict[1];
        // Written in every cycle and overwritten by the next word; words behind a packet's end, the word behind a
        // header, and a header's first word are never read.
        heads[{half, out_word}] <= c_data;
        buffer[write_at] <= c_data;
        if (collect & c_last) begin
            // A packet that ends within its header, or exceeds a buffer, has no length.
            facts[half] <= {frame_ce, c_error | in_head | overflow, words, kept};
        end
        if (init_i) map[slot_i] <= {1'b0, init_base_i};
        else if (answer_i & take_i) map[slot_i] <= {wide_i, spare[serve]};
        if (!rst_n) begin
            pending  <= 2'b00;
            half     <= 1'b0;
            serve    <= 1'b0;
            open     <= 1'b1;
            out_word <= '0;
            spare[0] <= AB'(SLOTS * STRIDE);
            spare[1] <= AB'((SLOTS + 1) * STRIDE);
        end else begin
            if (collect) begin
                if (in_head) out_word <= out_word + HB'(1);
                if (c_last) begin
                    out_word      <= '0;
                    pending[half] <= 1'b1;
                    half          <= ~half;
                end
            end
            open <= collect & c_last ? ~pending[~half] | answer_i & serve != half :
                                       open | answer_i & serve == half;
            if (answer_i) begin
                pending[serve] <= 1'b0;
                serve          <= ~serve;
                if (take_i) spare[serve] <= exchanged[AB-1:0];
            end
        end
        if (!rst_n) begin
            write_at <= AB'(SLOTS * STRIDE);
        end else if (collect & in_head) begin
            write_at <= spare[half];
            words    <= '0;
        end else if (collect & ~overflow) begin
            write_at <= write_at + AB'(1);
            words    <= words + WB'(1);
        end
    end

    // Reading: address, memory, a register close to it, terms. Two steps share a word of 16-bit elements. A port that
    // does not contribute reads the same word of -0 continuously.
    logic [AB-1:0] read_at;
    logic          wide, odd, odd_q, odd_qq, source;
    logic  [W-1:0] memory, read;
    wire           narrow = half_i & ~wide;

    always_ff @(posedge clk) begin
        if (load_i) begin
            {wide, read_at} <= source_i ? map[read_slot_i] : {1'b1, AB'(NOTHING)};
            odd    <= 1'b0;
            source <= source_i;
        end else if (step_i) begin
            if (source & (odd | ~narrow)) read_at <= read_at + AB'(1);
            odd <= ~odd & narrow;
        end
        {odd_qq, odd_q} <= {odd_q, odd};
        memory <= buffer[read_at];
        read   <= memory;
        for (int i = 0; i < LANES; i++) begin
            terms_o[32*i+16 +: 16] <= ~narrow ? read[32*i+16 +: 16] :
                                      odd_qq ? read[16*(LANES+i) +: 16] : read[16*i +: 16];
            terms_o[32*i +: 16] <= narrow ? 16'd0 : read[32*i +: 16];
        end
    end

`ifndef SYNTHESIS
    // The buffers in use by slots; the others are the two spares.
    logic [SLOTS+1:0] held;
    wire  [4:0]    level = fifo_in - fifo_out;
    int   given, freed;
    assign given = int'(spare[serve]) / STRIDE;
    assign freed = int'(exchanged[AB-1:0]) / STRIDE;
    always_ff @(posedge clk) begin
        if (!rst_n) begin
            held <= '0;
        end else begin
            a_full: assert (level <= 5'd16);  // no overflow
            a_have_one: assert (!have || fifo_in != fifo_out);  // have implies a word in the FIFO
            a_open: assert (open == ~pending[half]);  // no write to a buffer whose packet waits
            a_asked: assert (!answer_i || pending[serve]);  // answers go to waiting packets
            if (init_i) held[int'(init_base_i) / STRIDE] <= 1'b1;
            else if (answer_i & take_i) begin
                a_twice: assert (!held[given] && held[freed] && given != freed);  // no buffer is in use twice
                held[given] <= 1'b1;
                held[freed] <= 1'b0;
            end
            if (collect & ~in_head) begin
                // Addresses are within the buffer.
                a_bounds: assert (write_at >= spare[half] && write_at - spare[half] <= AB'(BUF_WORDS));
            end
        end
    end
`endif
endmodule

`default_nettype wire
