// The header of the packet that control processes, received word by word, and its fields.
//
// Ports
//   fetch_i, word_i, data_i  a word of the header, and which one
//   forget_i, add_i, ranks_i  for a notice: clear the missing ranks; add these
//   others                   the header's fields in host order, with those of IP and UDP that give its length
//
// Timing: a word's fields are valid two cycles after it with SLOW (an input register, because of the distance to the
// ports), else one; ranks one cycle after add_i.
//
// Theory: bytes 16 to 79 of the frame are kept; control does not use those before. If 80 bytes are not a multiple of
// the bus, the first word is shorter by PAD bytes.
`default_nettype none

module packet_header #(
    parameter int W     = 64,
    parameter bit SLOW  = 1'b1,
    localparam int B    = W / 8,
    localparam int PAD  = (B - 80 % B) % B,
    localparam int HEAD = (80 + PAD) / B,
    localparam int HB   = HEAD < 2 ? 1 : $clog2(HEAD + 1)
) (
    input  wire           clk,

    input  wire           fetch_i,
    input  wire  [HB-1:0] word_i,
    input  wire  [W-1:0]  data_i,
    input  wire           forget_i,
    input  wire           add_i,
    input  wire  [63:0]   ranks_i,

    output wire  [15:0]   ip_bytes_o,
    output wire  [15:0]   udp_bytes_o,
    output wire  [2:0]    kind_o,
    output wire           resent_o,
    output wire           congested_o,
    output wire  [7:0]    tree_o,
    output wire           bf16_o,
    output wire  [31:0]   job_o,
    output wire  [31:0]   vid_o,
    output wire  [31:0]   chunk_o,
    output wire  [15:0]   epoch_o,
    output wire  [15:0]   window_cap_o,
    output wire  [15:0]   n_elems_o,
    output wire  [31:0]   marks_o,
    output wire  [63:0]   missing_o,
    output wire  [31:0]   reserved_o
);
    logic [639:0] header;

    function automatic logic [15:0] be16(input logic [15:0] v);
        be16 = {v[7:0], v[15:8]};
    endfunction
    function automatic logic [31:0] be32(input logic [31:0] v);
        be32 = {be16(v[15:0]), be16(v[31:16])};
    endfunction

    assign ip_bytes_o   = be16(header[8*16 +: 16]);
    assign udp_bytes_o  = be16(header[8*38 +: 16]);
    assign kind_o       = header[8*43 +: 3];
    assign resent_o     = header[8*43+4];
    assign congested_o  = header[8*43+5];
    assign tree_o       = header[8*44 +: 8];
    assign bf16_o       = header[8*45+5];
    assign job_o        = be32(header[8*46 +: 32]);
    assign vid_o        = be32(header[8*50 +: 32]);
    assign chunk_o      = be32(header[8*54 +: 32]);
    assign epoch_o      = be16(header[8*58 +: 16]);
    assign window_cap_o = be16(header[8*60 +: 16]);
    assign n_elems_o    = be16(header[8*62 +: 16]);
    assign marks_o      = be32(header[8*64 +: 32]);
    assign missing_o    = {be32(header[8*68 +: 32]), be32(header[8*72 +: 32])};
    assign reserved_o   = header[8*76 +: 32];

    logic          fetched;
    logic [HB-1:0] fetched_word;
    logic [W-1:0]  fetched_data;
    if (SLOW) begin : g_slow
        always_ff @(posedge clk) begin
            fetched      <= fetch_i;
            fetched_word <= word_i;
            fetched_data <= data_i;
        end
    end else begin : g_fast
        assign {fetched, fetched_word, fetched_data} = {fetch_i, word_i, data_i};
    end

    always_ff @(posedge clk) begin
        if (fetched) begin
            for (int i = 16; i < 80; i++) begin
                if (fetched_word == HB'((i + PAD) / B)) header[8*i +: 8] <= fetched_data[8*((i+PAD)%B) +: 8];
            end
        end else if (forget_i) begin
            header[8*68 +: 64] <= 64'd0;
        end else if (add_i) begin
            header[8*68 +: 64] <= header[8*68 +: 64] | {be32(ranks_i[31:0]), be32(ranks_i[63:32])};
        end
    end
endmodule

`default_nettype wire
