// Sums waiting at a sending port, and the addresses of their headers.
//
// Ports
//   write_i  a word of a sum's frame, word_i; with its first_i the lease that it belongs to, the number of its words
//            (negated), and the bytes of the last of them less one. Writers check only room_o.
//   room_o   room for another frame of the largest size, including frames in the pipeline: half of the words are free
//   m_*      the frames, whole, to be sent (AXI-Stream)
//   template_* write 32 bits of a lease's first 42 header bytes
//
// Timing: a word is on m_* three cycles after its write_i if the queue is empty, with buses of 256 and 512 bits
// together with the next; one word per cycle. No output depends combinationally on m_tready.
//
// Theory: the sums for all ports differ only in their addresses. So a frame arrives here with zero addresses, and the
// first bytes of a header (Ethernet, IPv4 and UDP addresses, IP header checksum), which the driver has written per
// lease, are inserted by an OR. They fit frames of any length: the release engine writes the complement of the IP
// length into the IP identification, so that the checksum stays the same (with "don't fragment" the identification has
// no meaning, RFC 6864). Lease and length are in a separate queue, so that both block memories, words and templates,
// are read in the same cycle; each has an output register, followed by nothing but an OR. The whole pipeline moves in
// lockstep.
// Behind a template, unwritten memory is read as 0.
`default_nettype none

module sum_queue #(
    parameter int W      = 64,
    parameter int LEASES = 16,
    parameter int DEPTH  = 512,  // a power of two; half of it exceeds the largest frame and the pipeline's contents
    parameter int NB     = 8,    // bits of a frame's number of words
    localparam int B     = W / 8,
    localparam int PAD   = (B - 80 % B) % B,
    localparam int CB    = $clog2(B),
    localparam int LB    = $clog2(LEASES),
    localparam int HEAD  = (42 + PAD + B - 1) / B,  // words with template bytes
    localparam int TB    = $clog2(HEAD + 1),
    localparam int VB    = $clog2(W / 32),
    localparam int DB    = $clog2(DEPTH),
    localparam int QB    = $clog2(DEPTH / ((80 + PAD) / B) + 1)  // every frame has a header
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire                  write_i,
    input  wire  [W-1:0]         word_i,
    input  wire                  first_i,
    input  wire  [NB-1:0]        words_i,
    input  wire  [CB-1:0]        count_i,
    input  wire  [LB-1:0]        lease_i,
    output logic                 room_o,

    output wire  [W-1:0]         m_tdata,
    output wire  [B-1:0]         m_tkeep,
    output wire                  m_tlast,
    output wire                  m_tvalid,
    input  wire                  m_tready,

    input  wire                  template_write_i,
    input  wire  [LB+TB+VB-1:0]  template_at_i,
    input  wire  [31:0]          template_data_i
);
    // No entry is read while it is written: a FIFO gives no word in the cycle of its arrival, and the driver writes
    // templates of invalid leases. So memories need no comparison of addresses (no_rw_check).
    (* no_rw_check *) logic [W-1:0] fifo [0:DEPTH-1];
    logic [LB+CB+NB-1:0] frames [0:(1<<QB)-1];

    // The frame being read: its remaining words, negated, and the position in its header.
    logic  [QB-1:0] frame_in, frame_out;
    logic  [NB-1:0] left, next_left;
    logic  [CB-1:0] count, next_count;
    logic  [LB-1:0] lease, next_lease;
    logic  [TB-1:0] place;
    logic           reading;  // there is a frame, so left is not 0
    wire            ends       = &left;  // one word is left
    wire            fetch;
    wire            next_frame = frame_in != frame_out & (~reading | fetch & ends);

    // Words: the memories' outputs (a), and the same in the output registers (b).
    logic  [DB-1:0] at_in, at_out;
    wire   [DB-1:0] level = at_in - at_out;
    logic  [W-1:0]  a_data, a_template, b_words, b_template;
    logic           a_valid, a_last, b_valid, b_last;
    logic  [CB-1:0] a_count, b_count;
    wire            b_take;
    wire            moves = ~b_valid | b_take;

    assign {next_lease, next_count, next_left} = frames[frame_out];
    assign fetch = at_in != at_out & reading & moves;

    always_ff @(posedge clk) begin
        if (write_i) fifo[at_in] <= word_i;
        if (write_i & first_i) frames[frame_in] <= {lease_i, count_i, words_i};
        if (fetch) begin
            a_data  <= fifo[at_out];
            a_last  <= ends;
            a_count <= count;
        end
        if (moves) begin
            b_words    <= a_data;
            b_template <= a_template;
            b_last     <= a_last;
            b_count    <= a_count;
        end
        if (next_frame) {lease, count} <= {next_lease, next_count};
        if (next_frame) left <= next_left;
        else if (fetch) left <= left + NB'(1);
        room_o <= ~level[DB-1];
        if (!rst_n) begin
            at_in     <= '0;
            at_out    <= '0;
            frame_in  <= '0;
            frame_out <= '0;
            reading   <= 1'b0;
            place     <= '0;
            a_valid   <= 1'b0;
            b_valid   <= 1'b0;
        end else begin
            if (write_i) at_in <= at_in + DB'(1);
            if (fetch) at_out <= at_out + DB'(1);
            if (write_i & first_i) frame_in <= frame_in + QB'(1);
            if (next_frame) frame_out <= frame_out + QB'(1);
            reading <= next_frame | reading & ~(fetch & ends);
            if (fetch & ends) place <= '0;
            else if (fetch & place != TB'(HEAD)) place <= place + TB'(1);
            if (moves) {b_valid, a_valid} <= {a_valid, fetch};
        end
    end

    for (genvar n = 0; n < W / 32; n++) begin : g_template
        (* ram_style = "block", no_rw_check *) logic [31:0] template_ram [0:LEASES*(1<<TB)-1];
        initial for (int i = 0; i < LEASES * (1 << TB); i++) template_ram[i] = 32'd0;
        always_ff @(posedge clk) begin
            if (template_write_i && template_at_i[VB-1:0] == VB'(n)) begin
                template_ram[template_at_i[LB+TB+VB-1:VB]] <= template_data_i;
            end
            if (fetch) a_template[32*n +: 32] <= template_ram[{lease, place}];
        end
    end

    // The frame to be sent: with addresses, and without the padding that aligns the payload.
    wire [W-1:0] b_data = b_words | b_template;
    wire [B-1:0] b_keep;
    assign b_keep[0] = 1'b1;
    for (genvar i = 1; i < B; i++) begin : g_keep
        assign b_keep[i] = ~b_last | b_count >= CB'(i);
    end
    if (PAD == 0) begin : g_aligned
        assign {m_tdata, m_tkeep, m_tlast, m_tvalid} = {b_data, b_keep, b_last, b_valid};
        assign b_take = m_tready;
    end else begin : g_early
        axis_early #(.W(W)) early (
            .clk, .rst_n, .s_tdata(b_data), .s_tkeep(b_keep), .s_tlast(b_last), .s_tvalid(b_valid),
            .s_tready(b_take), .m_tdata, .m_tkeep, .m_tlast, .m_tvalid, .m_tready);
    end

`ifndef SYNTHESIS
    // The remaining words of the frame being written.
    logic [NB-1:0] owed;
    always_ff @(posedge clk) begin
        if (!rst_n) begin
            owed <= '0;
        end else begin
            a_room: assert (!write_i || level != {DB{1'b1}});  // no overflow of words
            a_place: assert (!(write_i && first_i) || frame_in + QB'(1) != frame_out);  // no overflow of frames
            a_begun: assert (!write_i || first_i == (owed == '0));  // frames have the announced length
            if (write_i) owed <= first_i ? words_i + NB'(1) : owed + NB'(1);
            a_some: assert (!reading || left != '0);  // frames have words
            a_read: assert (!fetch || level != '0);  // reads only of written words
        end
    end
`endif
endmodule

`default_nettype wire
