// One port's sending side: frames of the switch chip and sums of the accelerator, in turn, to the wire.
//
// Ports
//   s_*      frames from the switch chip (AXI-Stream)
//   m_*      frames to the wire
//   write_i  a word of a sum's frame: word_i, last_i with the bytes of the last word less one on count_i, and
//            the lease that it belongs to; nobody asks whether there is room but room_o
//   room_o   another frame of the largest size fits, whatever is still on its way here
//   template_* write 32 bits of a lease's first 42 header bytes
//
// Timing: a word of the switch chip is sent one cycle after it was taken; a word of a sum leaves three cycles
// after write_i if nothing waits before it. m_tready reaches s_tready in the same cycle; nothing else does.
//
// Theory: sums of all ports are the same but for who they are for. So a frame comes here without addresses
// (zero), and the first bytes of a header (Ethernet, IPv4 and UDP addresses, IP header checksum), which the
// driver has written per lease, are put in by an OR. They fit frames of any length: the sender of the sum
// writes the complement of the IP length into the IP identification, so that the checksum stays the same
// (with "don't fragment" the identification means nothing, RFC 6864).
`default_nettype none

module tx_port #(
    parameter int W      = 64,
    parameter int LEASES = 16,
    parameter int DEPTH  = 512,
    parameter int FRAME  = 220,  // words of the largest frame, and what may be on its way here
    localparam int B     = W / 8,
    localparam int PAD   = (B - 80 % B) % B,
    localparam int CB    = $clog2(B),
    localparam int LB    = $clog2(LEASES),
    localparam int HEAD  = (42 + PAD + B - 1) / B,  // words with template bytes
    localparam int HB    = HEAD < 2 ? 1 : $clog2(HEAD + 1),
    localparam int TB    = HEAD < 2 ? 1 : $clog2(HEAD),
    localparam int NB    = $clog2(W / 32),
    localparam int DB    = $clog2(DEPTH)
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire  [W-1:0]         s_tdata,
    input  wire  [B-1:0]         s_tkeep,
    input  wire                  s_tlast,
    input  wire                  s_tvalid,
    output wire                  s_tready,

    output logic [W-1:0]         m_tdata,
    output logic [B-1:0]         m_tkeep,
    output logic                 m_tlast,
    output logic                 m_tvalid,
    input  wire                  m_tready,

    input  wire                  write_i,
    input  wire  [W-1:0]         word_i,
    input  wire                  last_i,
    input  wire  [CB-1:0]        count_i,
    input  wire  [LB-1:0]        lease_i,
    output logic                 room_o,

    input  wire                  template_write_i,
    input  wire  [LB+TB+NB-1:0]  template_at_i,
    input  wire  [31:0]          template_data_i
);
    // Sums that wait: memory, its output (a), the word with its template beside it (b).
    // What is read is never being written: a FIFO gives no word in the cycle in which it comes, and the driver writes
    // templates of leases that are not valid. So memories need no comparison of addresses (no_rw_check).
    (* no_rw_check *) logic [W+CB+LB:0] fifo [0:DEPTH-1];
    logic [W+CB+LB:0] a;
    logic  [DB:0]     level;
    logic  [DB-1:0]   at_in, at_out;
    logic             a_valid, b_valid, b_last, b_head, b_tail;
    logic  [HB-1:0]   a_word;
    logic  [W-1:0]    b_data, b_template;
    logic  [CB-1:0]   b_count;
    wire   [W-1:0]    a_data;
    wire              a_last;
    wire   [CB-1:0]   a_count;
    wire   [LB-1:0]   a_lease;
    wire              b_take;
    wire              b_goes = b_valid & b_take;
    wire              a_take = a_valid & (~b_valid | b_goes);
    wire              fetch  = level != '0 & (~a_valid | a_take);

    assign {a_lease, a_count, a_last, a_data} = a;

    always_ff @(posedge clk) begin
        if (write_i) fifo[at_in] <= {lease_i, count_i, last_i, word_i};
        if (fetch) a <= fifo[at_out];
        if (a_take) begin
            b_data  <= a_data;
            b_last  <= a_last;
            b_count <= a_count;
            b_head  <= a_word != HB'(HEAD);
            b_tail  <= a_word == HB'(HEAD - 1);
        end
        room_o <= level < (DB+1)'(DEPTH - FRAME);
        if (!rst_n) begin
            level   <= '0;
            at_in   <= '0;
            at_out  <= '0;
            a_valid <= 1'b0;
            b_valid <= 1'b0;
            a_word  <= '0;
        end else begin
            level <= level + (DB+1)'(write_i) - (DB+1)'(fetch);
            if (write_i) at_in <= at_in == DB'(DEPTH - 1) ? '0 : at_in + DB'(1);
            if (fetch) at_out <= at_out == DB'(DEPTH - 1) ? '0 : at_out + DB'(1);
            a_valid <= fetch | (a_valid & ~a_take);
            b_valid <= a_take | (b_valid & ~b_goes);
            if (a_take) a_word <= a_last ? '0 : a_word == HB'(HEAD) ? a_word : a_word + HB'(1);
        end
    end

    for (genvar n = 0; n < W / 32; n++) begin : g_template
        (* ram_style = "block", no_rw_check *) logic [31:0] template_ram [0:LEASES*(1<<TB)-1];
        always_ff @(posedge clk) begin
            if (template_write_i && template_at_i[NB-1:0] == NB'(n)) begin
                template_ram[template_at_i[LB+TB+NB-1:NB]] <= template_data_i;
            end
            if (a_take) b_template[32*n +: 32] <= template_ram[{a_lease, a_word[TB-1:0]}];
        end
    end

    // The frame as it is to be sent: without the bytes before it that align the payload.
    wire [W-1:0] o_data;
    wire [B-1:0] o_keep, b_keep;
    wire         o_last, o_valid, o_take;
    // The template ends within its last word; what the memory holds behind that is not for us.
    wire [W-1:0] b_whole;
    for (genvar i = 0; i < B; i++) begin : g_whole
        wire put = b_head & (i < (42 + PAD) % B | ~b_tail);
        assign b_whole[8*i +: 8] = b_data[8*i +: 8] | (b_template[8*i +: 8] & {8{put}});
    end
    assign b_keep[0] = 1'b1;
    for (genvar i = 1; i < B; i++) begin : g_keep
        assign b_keep[i] = ~b_last | b_count >= CB'(i);
    end
    if (PAD == 0) begin : g_aligned
        assign {o_data, o_keep, o_last, o_valid} = {b_whole, b_keep, b_last, b_valid};
        assign b_take = o_take;
    end else begin : g_early
        axis_early #(.W(W)) early (
            .clk, .rst_n, .s_tdata(b_whole), .s_tkeep(b_keep), .s_tlast(b_last), .s_tvalid(b_valid),
            .s_tready(b_take), .m_tdata(o_data), .m_tkeep(o_keep), .m_tlast(o_last), .m_tvalid(o_valid),
            .m_tready(o_take));
    end

    // In turn, frame by frame.
    logic busy, ours_q;
    wire  ours   = busy ? ours_q : o_valid & ~(s_tvalid & ours_q);
    wire  accept = ~m_tvalid | m_tready;

    assign s_tready = accept & ~ours;
    assign o_take   = accept & ours;

    always_ff @(posedge clk) begin
        if (accept) begin
            m_tdata <= ours ? o_data : s_tdata;
            m_tlast <= ours ? o_last : s_tlast;
            m_tkeep <= ours ? o_keep : s_tkeep;
        end
        if (!rst_n) begin
            busy     <= 1'b0;
            ours_q   <= 1'b0;
            m_tvalid <= 1'b0;
        end else if (accept) begin
            m_tvalid <= ours ? o_valid : s_tvalid;
            if (ours ? o_valid : s_tvalid) begin
                busy   <= ~(ours ? o_last : s_tlast);
                ours_q <= ours;
            end
        end
    end
endmodule

`default_nettype wire
