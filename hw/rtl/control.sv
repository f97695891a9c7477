// The accelerator's mind: admits packets, keeps a record per slot, orders releases. It does what
// docs/protocol-panama.md says of a switch, with the same outcome for every packet.
//
// Ports
//   pending_i ..     packets that wait at the receiving ports (see rx_port), served in turn
//   answer_o ..      one port's packet is decided; take_o: it goes to slot_o, `wide_o` if its elements are in the
//                    type of addition
//   init_o ..        after reset every slot gets a buffer
//   order_* ..       the queue of releases, for the release engine
//   record_*         the engine's view of a slot: the fields of the header to be sent, two cycles after record_read_i
//   lease_*          the driver's writes: a lease's words, a port's branch and ranks under it, and clear_i: forget
//                    all that is in a lease's slots and start at vid 0
//   outcome_*        one strobe per decided packet, to be counted
//
// Timing: a decision takes HEAD_FETCH + 5 cycles (13 with a bus of 64 bits, 6 with 512), two more for each vid
// that had been waiting behind a hole, and PORTS more when ranks under absent children are collected for a notice.
//
// Theory
//   - A lease is found directly: its place is the low bits of the job, turned with those of the tree. Two leases
//     that want one place exclude each other; the driver says so.
//   - A lease has a ring of slots, at least twice the window. Below `released`, the lowest vid not yet released,
//     lie the last `window` sums: they are not stored but added again if a worker asks, for the contributions are
//     still in the port buffers. From `released` on, up to the window, lie the vids that fill.
//   - A result from the parent goes to the parent's own port buffer in the slot, and from there to the children:
//     a sum of one, which changes no bit.
//   - Notices (waiting, mismatch) are headers without a sum: a record of its own, behind those of the slots. If one
//     is still on its way, another is not made: whoever asked will ask again.
//   - The queue has a place for every slot, and as many for answers, which are left out while they are taken. So
//     control never waits for anybody, and receiving ports never wait for a sender.
`default_nettype none

module control #(
    parameter int W         = 64,
    parameter int PORTS     = 4,
    parameter int LEASES    = 16,
    parameter int SLOTS     = 32,
    parameter int BUF_WORDS = 176,
    parameter int RECORD    = 251,
    localparam int B        = W / 8,
    localparam int PAD      = (B - 80 % B) % B,
    localparam int HEAD     = (80 + PAD) / B,
    localparam int HB       = HEAD < 2 ? 1 : $clog2(HEAD + 1),
    localparam int LB       = $clog2(LEASES),
    localparam int SB       = $clog2(SLOTS),
    localparam int PB       = $clog2(PORTS),
    localparam int AB       = $clog2((SLOTS + 2) * BUF_WORDS + 1)
) (
    input  wire                  clk,
    input  wire                  rst_n,

    input  wire  [PORTS-1:0]     pending_i,
    output logic [HB-1:0]        head_word_o,
    input  wire  [PORTS*W-1:0]   head_data_i,
    input  wire  [PORTS-1:0]     ce_i,
    input  wire  [PORTS-1:0]     broken_i,
    input  wire  [PORTS*16-1:0]  bytes_i,
    output wire  [PORTS-1:0]     answer_o,
    output wire                  take_o,
    output wire                  wide_o,
    output wire  [SB-1:0]        slot_o,
    output wire                  init_o,
    output logic [AB-1:0]        init_base_o,

    output wire                  order_valid_o,
    input  wire                  order_take_i,
    output wire  [LB-1:0]        order_lease_o,
    output wire  [SB:0]          order_slot_o,
    output wire  [2:0]           order_kind_o,
    output wire  [PORTS-1:0]     order_sources_o,
    output wire  [PORTS-1:0]     order_to_o,
    output wire  [7:0]           order_vid_o,
    input  wire                  record_read_i,
    output wire  [RECORD-1:0]    record_o,
    input  wire                  notice_sent_i,

    input  wire                  lease_write_i,
    input  wire  [LB-1:0]        lease_i,
    input  wire  [3:0]           lease_word_i,
    input  wire                  child_write_i,
    input  wire  [PB-1:0]        child_port_i,
    input  wire  [1:0]           child_word_i,
    input  wire  [31:0]          lease_data_i,
    input  wire                  clear_i,
    output wire                  busy_o,

    output logic                 outcome_valid_o,
    output logic [4:0]           outcome_o
);
    localparam int FIRST = (16 + PAD) / B;  // header words before this one have nothing for us
    localparam int QUEUE = 2 * SLOTS;
    localparam int QB    = $clog2(QUEUE);
    localparam int PW    = (PORTS + 31) / 32;
    localparam logic [2:0] PARTIAL = 3'd1, RESULT = 3'd2, WAITING = 3'd3, MISMATCH = 3'd4;

`include "outcomes.svh"

    // ---- Leases: written by the driver, 32 bits at a time -------------------------------------------------
    logic [LEASES-1:0] lease_valid;
    logic [31:0] lease_job      [0:LEASES-1];
    logic [23:0] lease_key      [0:LEASES-1];  // epoch, tree
    logic [31:0] lease_window   [0:LEASES-1];  // accepted, announced
    logic [31:0] lease_place    [0:LEASES-1];  // ring mask, first slot
    logic [15:0] lease_elements [0:LEASES-1];
    logic [31:0] lease_released [0:LEASES-1];
    logic  [4:0] child_branch   [0:LEASES*PORTS-1];
    logic [31:0] child_ranks_hi [0:LEASES*PORTS-1];
    logic [31:0] child_ranks_lo [0:LEASES*PORTS-1];
    wire  [PW*32-1:0] members_words, parent_words;
    logic [LB-1:0] at, clear_lease, turned;  // the lease in question

    always_ff @(posedge clk) begin
        if (lease_write_i) begin
            case (lease_word_i)
                4'd0: lease_job[lease_i]      <= lease_data_i;
                4'd1: lease_key[lease_i]      <= lease_data_i[23:0];
                4'd2: lease_window[lease_i]   <= lease_data_i;
                4'd3: lease_place[lease_i]    <= lease_data_i;
                4'd4: lease_elements[lease_i] <= lease_data_i[15:0];
                default: ;
            endcase
        end
        if (child_write_i) begin
            case (child_word_i)
                2'd0: child_branch[{lease_i, child_port_i}]   <= lease_data_i[4:0];
                2'd1: child_ranks_hi[{lease_i, child_port_i}] <= lease_data_i;
                2'd2: child_ranks_lo[{lease_i, child_port_i}] <= lease_data_i;
                default: ;
            endcase
        end
        if (!rst_n) lease_valid <= '0;
        else if (lease_write_i & lease_word_i == 4'd5) lease_valid[lease_i] <= lease_data_i[0];
    end
    for (genvar n = 0; n < PW; n++) begin : g_ports
        logic [31:0] members_ram [0:LEASES-1];
        logic [31:0] parent_ram  [0:LEASES-1];
        always_ff @(posedge clk) begin
            if (lease_write_i & lease_word_i == 4'(8 + n)) members_ram[lease_i] <= lease_data_i;
            if (lease_write_i & lease_word_i == 4'(12 + n)) parent_ram[lease_i] <= lease_data_i;
        end
        assign members_words[32*n +: 32] = members_ram[at];
        assign parent_words[32*n +: 32]  = parent_ram[at];
    end
    wire [PORTS-1:0] members = members_words[PORTS-1:0];
    wire [PORTS-1:0] parent  = parent_words[PORTS-1:0];

    // ---- The packet in question ---------------------------------------------------------------------------
    typedef enum logic [3:0] {INIT, FETCH, LOOKUP, READ, SETTLE, CHECK, ACT, ADVANCE, LOOK, RANKS, NOTE, CLEAR} state_e;
    state_e            state;
    logic  [PB-1:0]    port;
    wire   [W-1:0]     head_data;
    wire               ce, broken;
    wire   [15:0]      bytes;
    logic  [15:0]      bytes_q;
    logic  [639:0]     header;
    wire   [PORTS-1:0] me = PORTS'(1) << port;

    assign head_data = head_data_i[port*W +: W];
    assign bytes     = bytes_i[port*16 +: 16];
    assign ce        = ce_i[port];
    assign broken    = broken_i[port];

    function automatic logic [15:0] be16(input logic [15:0] v);
        be16 = {v[7:0], v[15:8]};
    endfunction
    function automatic logic [31:0] be32(input logic [31:0] v);
        be32 = {be16(v[15:0]), be16(v[31:16])};
    endfunction

    wire [15:0] h_ip_bytes   = be16(header[8*16 +: 16]);
    wire [15:0] h_udp_bytes  = be16(header[8*38 +: 16]);
    wire  [2:0] h_kind       = header[8*43 +: 3];
    wire        h_resent     = header[8*43+4];
    wire        h_congested  = header[8*43+5];
    wire  [7:0] h_tree       = header[8*44 +: 8];
    wire        h_bf16       = header[8*45+5];
    wire [31:0] h_job        = be32(header[8*46 +: 32]);
    wire [31:0] h_vid        = be32(header[8*50 +: 32]);
    wire [31:0] h_chunk      = be32(header[8*54 +: 32]);
    wire [15:0] h_epoch      = be16(header[8*58 +: 16]);
    wire [15:0] h_window_cap = be16(header[8*60 +: 16]);
    wire [15:0] h_n_elems    = be16(header[8*62 +: 16]);
    wire [31:0] h_marks      = be32(header[8*64 +: 32]);
    wire [63:0] h_missing    = {be32(header[8*68 +: 32]), be32(header[8*72 +: 32])};
    wire [31:0] h_reserved   = header[8*76 +: 32];
    wire        from_parent  = |(parent & me);
    wire        from_member  = |(members & me);

    // ---- What stands in the slots -------------------------------------------------------------------------
    // Beside the fields of the header: phase, who has arrived, who has asked, and the header's two flags. These
    // change alone, the fields only when a packet is taken. One more place, at SLOTS, is for notices.
    localparam logic [1:0] NONE = 2'd0, FILLING = 2'd1, SENT_UP = 2'd2, SUMMED = 2'd3;
    localparam int BOOK = 4 + 2 * PORTS;
    localparam int FIELDS = RECORD - 2;
    (* ram_style = "block" *) logic [FIELDS-1:0] fields [0:SLOTS];
    logic [BOOK-1:0]   books  [0:SLOTS];
    logic [FIELDS-1:0] fields_write, fields_read, fields_engine;
    logic [BOOK-1:0]   book_write, book_read, book_engine;
    logic [RECORD-1:0] record_q;
    logic              write_fields, write_book;
    logic  [SB:0]      write_at;
    logic  [SB-1:0]    slot;
    logic              laps [0:SLOTS-1];  // of the vid that was released last here: its bit above the ring
    logic  [SB-1:0]    clear_at;

    wire   [1:0]       q_phase;
    wire   [PORTS-1:0] q_arrived, q_asked;
    wire               q_resent, q_congested;
    wire   [31:0]      q_marks;
    logic  [15:0]      q_window_cap;
    wire   [63:0]      q_missing;
    logic  [31:0]      q_vid, q_chunk;
    logic  [15:0]      q_n_elems;
    logic              q_bf16;
    assign {q_phase, q_arrived, q_asked, q_resent, q_congested} = book_read;
    assign q_marks   = fields_read[167:136];
    assign q_missing = fields_read[119:56];

    always_ff @(posedge clk) begin
        if (write_fields) fields[write_at] <= fields_write;
        if (write_book) books[write_at] <= book_write;
        fields_read <= fields[{1'b0, slot}];
        book_read   <= books[{1'b0, slot}];
        {q_vid, q_chunk, q_bf16, q_n_elems} <= fields_read[FIELDS-1:168];
        q_window_cap <= fields_read[135:120];
        if (record_read_i) begin
            fields_engine <= fields[order_slot_o];
            book_engine   <= books[order_slot_o];
        end
    end
    always_ff @(posedge clk) record_q <= {book_engine[1:0], fields_engine};
    assign record_o = record_q;

    // The header's lease, as a register if its words come slowly enough to have it when the last one is here.
    always_comb for (int i = 0; i < LB; i++) turned[i] = h_tree[LB-1-i];
    if (HEAD - FIRST > 4) begin : g_slow
        logic [LB-1:0] at_q;
        wire clears = state == CLEAR | state == FETCH & head_word_o == HB'(FIRST);
        always_ff @(posedge clk) at_q <= clears ? clear_lease : h_job[LB-1:0] ^ turned;
        assign at = at_q;
    end else begin : g_fast
        assign at = state == CLEAR ? clear_lease : h_job[LB-1:0] ^ turned;
    end

    // ---- Facts, one register each, so that no cycle is long ------------------------------------------------
    logic        found, stale, future, lengths, too_large, early, late, lap;
    logic        known, agrees, mine, complete, goes_on, cap_below, cap_below_new;
    logic [31:0] released, ahead;
    wire  [31:0] place = lease_place[at];
    wire  [SB-1:0] base = place[SB-1:0];
    wire  [SB:0] ring  = {1'b0, place[16 +: SB]};  // slots in the ring, less one
    wire  [15:0] window = lease_window[at][31:16], announced = lease_window[at][15:0];
    // The vid after this one, or the one that may be next to step over: released already?
    wire  [SB:0] vid_after = state == LOOK ? released[SB:0] : h_vid[SB:0] + (SB+1)'(1);
    wire  [SB-1:0] slot_after = base + (vid_after[SB-1:0] & ring[SB-1:0]);
    wire         after_is_released = laps[slot_after] == |(vid_after & (ring + (SB+1)'(1)));
    wire  [15:0] payload = h_n_elems << (h_bf16 & h_kind != PARTIAL ? 1 : 2);
    wire  [15:0] epochs = h_epoch - lease_key[at][23:8];
    wire  [16:0] retained = {1'b0, ahead[15:0]} + {1'b0, window};

    // ---- Decision ------------------------------------------------------------------------------------------
    wire up    = ~from_parent;
    logic take, release_up, answer, asked, waiting, disagree;
    logic [4:0] outcome;

    // Refusals that need no look at the slot, decided while it is being read.
    logic       refused;
    logic [4:0] refusal;
    always_ff @(posedge clk) begin
        refused <= 1'b1;
        if (broken) refusal <= O_BROKEN_FRAME;
        else if (h_reserved != 32'd0) refusal <= O_RESERVED_FIELD;
        else if (h_n_elems == 16'd0) refusal <= O_EMPTY_FRAGMENT;
        else if (!lengths) refusal <= O_PAYLOAD_LENGTH;
        else if (!found) refusal <= O_NO_LEASE;
        else if (stale) refusal <= O_STALE_EPOCH;
        else if (future) refusal <= O_FUTURE_EPOCH;
        else if (from_parent ? h_kind != RESULT : from_member & h_kind == RESULT) refusal <= O_WRONG_DIRECTION;
        else if (~from_parent & ~from_member) refusal <= O_NOT_A_NEIGHBOUR;
        else if (too_large) refusal <= O_TOO_LARGE;
        else if (early) refusal <= O_BEYOND_WINDOW;
        else begin
            refusal <= O_TOO_OLD;
            refused <= late;
        end
    end

    always_comb begin
        {take, release_up, answer, asked, waiting, disagree} = '0;
        outcome = O_CONTRIBUTION;
        if (refused | ahead[31] & ~known) outcome = refusal;
        else if (from_parent) begin
            if (~known | q_phase == FILLING) outcome = O_UNEXPECTED;
            else if (q_phase == SUMMED) begin
                outcome = O_DUPLICATE;
                asked   = 1'b1;
            end else if (~agrees) outcome = O_MISMATCH;
            else begin
                outcome = O_RESULT;
                take    = 1'b1;
            end
        end else if (known & q_phase != FILLING) begin
            outcome = O_DUPLICATE;
            if (h_resent) begin
                outcome = O_ANSWERED;
                answer  = 1'b1;
            end
        end else if (known & mine) begin
            outcome = O_DUPLICATE;
            if (h_resent) begin
                outcome = O_WAITING;
                waiting = 1'b1;
            end
        end else if (known & ~agrees) begin
            outcome  = O_MISMATCH_TOLD;
            disagree = 1'b1;
        end else begin
            take       = 1'b1;
            release_up = complete;
            outcome    = complete ? O_RELEASED : O_CONTRIBUTION;
        end
    end

    // ---- What follows from it ------------------------------------------------------------------------------
    logic [PB-1:0] walk;
    logic notice_waits, clear_waits, room_for_answer;
    logic [63:0] awaited;  // ranks under absent children
    wire  root     = parent == '0;
    wire  act      = state == ACT;
    wire  noted    = (act & disagree | state == NOTE) & ~notice_waits & room_for_answer;
    wire  advances = act & release_up & ahead == 32'd0;
    wire  [LB+PB-1:0] child = {at, state == RANKS ? walk : port};
    wire  [63:0] ranks = {child_ranks_hi[child], child_ranks_lo[child]};
    wire         merge = act & take & up & known;  // with what is in the slot
    logic [31:0] branch_bit;
    wire  [31:0] branch = branch_bit & {32{ce & up & act & take}};
    wire  [15:0] cap_least  = known ? (cap_below ? h_window_cap : q_window_cap)
                                    : (cap_below_new ? h_window_cap : announced);

    always_comb begin
        write_fields = act & take | noted;
        write_book   = write_fields | act & (answer & q_phase == SENT_UP | asked) | state == INIT | state == CLEAR;
        write_at     = noted ? (SB+1)'(SLOTS) : state == INIT | state == CLEAR ? {1'b0, clear_at} : {1'b0, slot};
        book_write   = {q_phase, q_arrived, q_asked, q_resent, q_congested};
        if (state == INIT | state == CLEAR) book_write = '0;
        else if (noted) book_write = {NONE, {2*PORTS{1'b0}}, h_resent, h_congested};
        else if (answer) book_write = {q_phase, q_arrived, q_asked | me, 1'b1, q_congested};
        else if (asked) book_write = {q_phase, q_arrived, {PORTS{1'b0}}, q_resent, q_congested};
        else if (from_parent) book_write = {SUMMED, q_arrived, {PORTS{1'b0}}, h_resent, h_congested | ce};
        else begin
            book_write = {~release_up ? FILLING : root ? SUMMED : SENT_UP,
                          (known ? q_arrived : {PORTS{1'b0}}) | me, {PORTS{1'b0}}, 2'b00};
        end
        fields_write = {h_vid, h_chunk, h_bf16, h_n_elems, (merge ? q_marks : 32'd0) | h_marks | branch,
                        noted | from_parent ? h_window_cap : cap_least,
                        state == NOTE ? awaited : (merge ? q_missing : 64'd0) | h_missing, h_job, h_tree, h_epoch};
    end

    logic             order_write;
    logic [SB:0]      order_slot;
    logic [2:0]       order_kind;
    logic [PORTS-1:0] order_sources, order_to;

    always_comb begin
        order_write   = act & (take & from_parent | release_up);
        order_slot    = {1'b0, slot};
        order_kind    = RESULT;
        order_sources = root ? members : parent;
        order_to      = members;
        if (release_up & ~root | answer & q_phase == SENT_UP) begin
            order_kind    = PARTIAL;
            order_sources = members;
            order_to      = parent;
        end else if (answer) order_to = me;
        else if (asked) order_to = q_asked;
        if (act & (answer | asked & q_asked != '0)) order_write = room_for_answer;
        if (act & disagree | state == NOTE) begin
            order_write = noted;
            order_slot  = (SB+1)'(SLOTS);
            order_kind  = act ? MISMATCH : WAITING;
            order_to    = act ? members | parent : me;
        end
    end

    localparam int OB = LB + SB + 1 + 3 + 2 * PORTS + 8;
    logic [OB-1:0] orders [0:QUEUE-1];
    logic [QB-1:0] order_in, order_out;
    logic [QB:0]   order_count;
    assign {order_lease_o, order_slot_o, order_kind_o, order_sources_o, order_to_o,
            order_vid_o} = orders[order_out];
    assign order_valid_o   = order_count != '0;

    assign answer_o = act & ~waiting | state == NOTE ? me : '0;
    assign take_o   = act & take;
    assign wide_o   = h_kind == PARTIAL & h_bf16;
    assign slot_o   = init_o ? clear_at : slot;
    assign init_o   = state == INIT;
    assign busy_o   = state == INIT | state == CLEAR | clear_waits | order_valid_o;

    always_ff @(posedge clk) begin
        if (state == FETCH) begin
            for (int i = 16; i < 80; i++) begin
                if (head_word_o == HB'((i + PAD) / B)) header[8*i +: 8] <= head_data[8*((i+PAD)%B) +: 8];
            end
        end
        if (state != RANKS & state != NOTE) awaited <= 64'd0;
        else if (state == RANKS && members[walk] && !q_arrived[walk]) awaited <= awaited | ranks;
    end

    always_ff @(posedge clk) begin
        bytes_q   <= bytes;
        branch_bit <= 32'd1 << child_branch[child];
        found     <= lease_valid[at] & lease_job[at] == h_job & lease_key[at][7:0] == h_tree;
        stale     <= epochs[15];
        future    <= ~epochs[15] & h_epoch != lease_key[at][23:8];
        lengths   <= bytes_q == payload & h_udp_bytes == bytes_q + 16'd46 & h_ip_bytes == h_udp_bytes + 16'd20;
        too_large <= h_n_elems > lease_elements[at];
        early     <= ~ahead[31] & (|ahead[30:16] | ahead[15:0] >= window);
        late      <= ahead[31] & (~&ahead[30:16] | ~retained[16]);
        known     <= q_vid == h_vid & q_phase != NONE;
        cap_below     <= h_window_cap < q_window_cap;
        cap_below_new <= h_window_cap < announced;
        agrees    <= q_chunk == h_chunk & q_bf16 == h_bf16 & q_n_elems == h_n_elems;
        mine      <= |(q_arrived & me);
        complete  <= ((q_vid == h_vid & q_phase != NONE ? q_arrived : '0) | me) == members;
        goes_on   <= after_is_released;
        if (state == LOOKUP) begin
            ahead    <= h_vid - lease_released[at];
            released <= lease_released[at];
            slot     <= base + (h_vid[SB-1:0] & ring[SB-1:0]);
            lap      <= |(h_vid[SB:0] & (ring + (SB+1)'(1)));
        end else if (advances | state == ADVANCE & goes_on) begin
            released <= released + 32'd1;
        end
        if (state == CLEAR) lease_released[at] <= 32'd0;
        else if (advances | state == ADVANCE & goes_on) lease_released[at] <= released + 32'd1;
        if (state == INIT | state == CLEAR) laps[clear_at] <= 1'b1;
        else if (act & release_up) laps[slot] <= lap;
    end

    // ---- Step by step --------------------------------------------------------------------------------------
    always_ff @(posedge clk) begin
        outcome_valid_o <= rst_n & act;
        outcome_o       <= outcome;
        if (order_write) begin
            orders[order_in] <= {at, order_slot, order_kind, order_sources, order_to, h_vid[7:0]};
        end
        room_for_answer <= order_count < (QB+1)'(SLOTS - 1);
        if (clear_i) clear_lease <= lease_i;
        if (!rst_n) begin
            state        <= INIT;
            port         <= '0;
            head_word_o  <= HB'(FIRST);
            clear_at     <= '0;
            init_base_o  <= '0;
            walk         <= '0;
            clear_waits  <= 1'b0;
            notice_waits <= 1'b0;
            order_in     <= '0;
            order_out    <= '0;
            order_count  <= '0;
        end else begin
            if (order_write) order_in <= order_in + QB'(1);
            if (order_take_i) order_out <= order_out + QB'(1);
            order_count  <= order_count + (QB+1)'(order_write) - (QB+1)'(order_take_i);
            notice_waits <= noted | (notice_waits & ~notice_sent_i);
            clear_waits  <= clear_i | (clear_waits & state != CLEAR);
            case (state)
                INIT: begin
                    clear_at    <= clear_at + SB'(1);
                    init_base_o <= init_base_o + AB'(BUF_WORDS);
                    if (clear_at == SB'(SLOTS - 1)) state <= FETCH;
                end
                FETCH: begin
                    if (head_word_o == HB'(FIRST) & clear_waits) begin
                        state <= CLEAR;
                    end else if (pending_i[port]) begin
                        head_word_o <= head_word_o + HB'(1);
                        if (head_word_o == HB'(HEAD - 1)) state <= LOOKUP;
                    end else begin
                        port <= port + PB'(1);
                    end
                end
                LOOKUP: state <= READ;
                READ:   state <= SETTLE;
                SETTLE: state <= CHECK;
                CHECK:  state <= ACT;
                ACT: begin
                    walk        <= '0;
                    head_word_o <= HB'(FIRST);
                    if (waiting) state <= RANKS;
                    else begin
                        port  <= port + PB'(1);
                        state <= advances & goes_on ? ADVANCE : FETCH;
                    end
                end
                ADVANCE: state <= goes_on ? LOOK : FETCH;
                LOOK: state <= ADVANCE;
                RANKS: begin
                    walk <= walk + PB'(1);
                    if (walk == PB'(PORTS - 1)) state <= NOTE;
                end
                NOTE: begin
                    port  <= port + PB'(1);
                    state <= FETCH;
                end
                CLEAR: begin
                    clear_at <= clear_at + SB'(1);
                    if (clear_at == base + ring[SB-1:0]) state <= FETCH;
                end
                default: state <= FETCH;
            endcase
            if (state == FETCH) clear_at <= lease_place[clear_lease][SB-1:0];
        end
    end
endmodule

`default_nettype wire
