// The accelerator as a process: the verilated RTL behind a Unix socket (docs/accelerator-device.md).
//
//   device SOCKET
//
// Listens at SOCKET, prints "ready SOCKET", and serves one connection after another until SIGTERM or SIGINT; every
// connection starts with a reset. The clock stops after 512 idle cycles, until the next message.
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "Vdevice.h"

namespace {

enum Kind : uint8_t {
    NET_IN = 0x01, SW_IN = 0x02, WRITE = 0x03, READ = 0x04, NET_OUT = 0x81, SW_OUT = 0x82, VALUE = 0x83,
};
constexpr size_t HEAD = 4;              // kind, port, length as 16 bits, little-endian
constexpr int QUIET = 512;              // idle cycles before the clock stops
constexpr size_t QUEUED = 64;           // frames queued at a line before reading from the socket stops
constexpr int BYTES = DEVICE_BUS / 8;
static_assert(DEVICE_PORTS * BYTES <= 64, "byte enables of all lines fit in 64 bits");

volatile sig_atomic_t ended = 0;
int listener = -1;

using Frame = std::vector<uint8_t>;

struct Source {
    std::deque<Frame> frames;
    size_t at = 0;
};

template <typename T> uint8_t* raw(T& signal) { return reinterpret_cast<uint8_t*>(&signal); }

class Device {
  public:
    explicit Device(int socket) : socket_(socket) { reset(); }

    // Until the peer closes, or sends an invalid message.
    void serve() {
        while (!ended) {
            bool busy = quiet_ < QUIET;
            if (!receive(busy)) return;
            if (quiet_ < QUIET && !step()) return;
        }
    }

  private:
    int socket_;
    VerilatedContext context_;
    Vdevice dut_{&context_};
    Source net_[DEVICE_PORTS], sw_[DEVICE_PORTS];
    Frame net_out_[DEVICE_PORTS], sw_out_[DEVICE_PORTS];
    Frame inbox_;
    Frame outbox_;
    int quiet_ = QUIET;

    void clock() {
        dut_.clk = 0;
        dut_.eval();
        dut_.clk = 1;
        dut_.eval();
    }

    void reset() {
        dut_.s_net_tvalid = dut_.s_sw_tvalid = dut_.s_net_terror = 0;
        dut_.s_axil_awvalid = dut_.s_axil_wvalid = dut_.s_axil_arvalid = 0;
        dut_.s_axil_bready = dut_.s_axil_rready = 1;
        dut_.m_net_tready = dut_.m_sw_tready = (1u << DEVICE_PORTS) - 1;
        dut_.rst_n = 0;
        for (int i = 0; i < 128; i++) clock();
        dut_.rst_n = 1;
        for (int i = 0; i < 64 + DEVICE_SLOTS; i++) clock();
    }

    bool send(uint8_t kind, int port, const Frame& body) {
        const uint8_t head[HEAD] = {kind, uint8_t(port), uint8_t(body.size()), uint8_t(body.size() >> 8)};
        outbox_.assign(head, head + HEAD);
        outbox_.insert(outbox_.end(), body.begin(), body.end());
        for (size_t sent = 0; sent < outbox_.size();) {
            ssize_t n = ::send(socket_, outbox_.data() + sent, outbox_.size() - sent, MSG_NOSIGNAL);
            if (n < 0 && errno == EINTR && !ended) continue;
            if (n <= 0) return false;
            sent += size_t(n);
        }
        return true;
    }

    bool full() const {
        for (int p = 0; p < DEVICE_PORTS; p++)
            if (net_[p].frames.size() >= QUEUED || sw_[p].frames.size() >= QUEUED) return true;
        return false;
    }

    // Read available messages; wait for one unless the device is busy.
    bool receive(bool busy) {
        if (busy && full()) return true;
        pollfd entry{socket_, POLLIN, 0};
        int ready = poll(&entry, 1, busy ? 0 : -1);
        if (ready < 0) return errno == EINTR;
        if (ready == 0) return true;
        uint8_t chunk[65536];
        ssize_t n = recv(socket_, chunk, sizeof chunk, 0);
        if (n < 0) return errno == EINTR;
        if (n == 0) return false;
        inbox_.insert(inbox_.end(), chunk, chunk + n);
        size_t from = 0;
        while (inbox_.size() - from >= HEAD) {
            const uint8_t* head = inbox_.data() + from;
            size_t length = head[2] | size_t(head[3]) << 8;
            if (inbox_.size() - from < HEAD + length) break;
            if (!obey(head[0], head[1], head + HEAD, length)) return false;
            from += HEAD + length;
        }
        inbox_.erase(inbox_.begin(), inbox_.begin() + ssize_t(from));
        return true;
    }

    bool obey(uint8_t kind, int port, const uint8_t* body, size_t length) {
        quiet_ = 0;
        auto word = [&](size_t at) {
            uint32_t value;
            memcpy(&value, body + at, 4);
            return value;
        };
        if ((kind == NET_IN || kind == SW_IN) && port < DEVICE_PORTS && length > 0) {
            (kind == NET_IN ? net_ : sw_)[port].frames.emplace_back(body, body + length);
            return true;
        }
        if (kind == WRITE && length == 8) return write(word(0), word(4));
        if (kind == READ && length == 4) {
            uint32_t address = word(0), value = 0;
            if (!read(address, value)) return false;
            Frame answer(8);
            memcpy(answer.data(), &address, 4);
            memcpy(answer.data() + 4, &value, 4);
            return send(VALUE, 0, answer);
        }
        fprintf(stderr, "device: message of kind %d, port %d, %zu bytes makes no sense; connection closed\n", kind,
                port, length);
        return false;
    }

    bool write(uint32_t address, uint32_t value) {
        dut_.s_axil_awaddr = address;
        dut_.s_axil_wdata = value;
        dut_.s_axil_wstrb = 15;
        dut_.s_axil_awvalid = dut_.s_axil_wvalid = 1;
        bool taken = false;
        while (!taken) {
            dut_.eval();
            taken = dut_.s_axil_awready;
            if (!step()) return false;
        }
        dut_.s_axil_awvalid = dut_.s_axil_wvalid = 0;
        return step();
    }

    bool read(uint32_t address, uint32_t& value) {
        dut_.s_axil_araddr = address;
        dut_.s_axil_arvalid = 1;
        bool taken = false;
        while (!taken) {
            dut_.eval();
            taken = dut_.s_axil_arready;
            if (!step()) return false;
        }
        dut_.s_axil_arvalid = 0;
        while (!dut_.s_axil_rvalid)
            if (!step()) return false;
        value = dut_.s_axil_rdata;
        return step();
    }

    template <typename D, typename K, typename L, typename V>
    void offer(Source* sources, D& data, K& keep, L& last, V& valid) {
        uint64_t keeps = 0, lasts = 0, valids = 0;
        for (int p = 0; p < DEVICE_PORTS; p++) {
            if (sources[p].frames.empty()) continue;
            const Frame& frame = sources[p].frames.front();
            size_t at = sources[p].at, left = frame.size() - at, n = left < size_t(BYTES) ? left : size_t(BYTES);
            memcpy(raw(data) + p * BYTES, frame.data() + at, n);
            keeps |= (n == 64 ? ~0ull : (1ull << n) - 1) << p * BYTES;
            lasts |= uint64_t(left <= size_t(BYTES)) << p;
            valids |= 1ull << p;
        }
        memcpy(raw(keep), &keeps, sizeof keep);
        memcpy(raw(last), &lasts, sizeof last);
        memcpy(raw(valid), &valids, sizeof valid);
    }

    void taken(Source* sources, uint64_t valid, uint64_t ready) {
        for (int p = 0; p < DEVICE_PORTS; p++) {
            if (!(valid & ready & 1ull << p)) continue;
            quiet_ = 0;
            sources[p].at += BYTES;
            if (sources[p].at >= sources[p].frames.front().size()) {
                sources[p].frames.pop_front();
                sources[p].at = 0;
            }
        }
    }

    template <typename D>
    bool collect(uint8_t kind, Frame* frames, D& data, uint64_t keep, uint64_t last, uint64_t valid) {
        for (int p = 0; p < DEVICE_PORTS; p++) {
            if (!(valid & 1ull << p)) continue;
            quiet_ = 0;
            const uint64_t mask = BYTES == 64 ? ~0ull : (1ull << BYTES) - 1;
            const int n = __builtin_popcountll(keep >> p * BYTES & mask);
            frames[p].insert(frames[p].end(), raw(data) + p * BYTES, raw(data) + p * BYTES + n);
            if (last & 1ull << p) {
                if (!send(kind, p, frames[p])) return false;
                frames[p].clear();
            }
        }
        return true;
    }

    // One clock cycle: offered words, and transfers at the edge.
    bool step() {
        quiet_++;
        offer(net_, dut_.s_net_tdata, dut_.s_net_tkeep, dut_.s_net_tlast, dut_.s_net_tvalid);
        offer(sw_, dut_.s_sw_tdata, dut_.s_sw_tkeep, dut_.s_sw_tlast, dut_.s_sw_tvalid);
        dut_.clk = 0;
        dut_.eval();
        taken(net_, dut_.s_net_tvalid, dut_.s_net_tready);
        taken(sw_, dut_.s_sw_tvalid, dut_.s_sw_tready);
        bool well = collect(NET_OUT, net_out_, dut_.m_net_tdata, dut_.m_net_tkeep, dut_.m_net_tlast,
                            dut_.m_net_tvalid) &&
                    collect(SW_OUT, sw_out_, dut_.m_sw_tdata, dut_.m_sw_tkeep, dut_.m_sw_tlast, dut_.m_sw_tvalid);
        dut_.clk = 1;
        dut_.eval();
        return well;
    }
};

void stop(int) {
    ended = 1;
    close(listener);
}

}  // namespace

int main(int argc, char** argv) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (argc != 2 || strlen(argv[1]) >= sizeof address.sun_path) {
        fprintf(stderr, "usage: device SOCKET (a path of less than %zu bytes)\n", sizeof address.sun_path);
        return 2;
    }
    strcpy(address.sun_path, argv[1]);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unlink(argv[1]);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) || listen(listener, 1)) {
        fprintf(stderr, "device: cannot listen at %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    struct sigaction action{};
    action.sa_handler = stop;
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
    printf("ready %s\n", argv[1]);
    fflush(stdout);
    while (!ended) {
        int connection = accept(listener, nullptr, nullptr);
        if (connection < 0) continue;
        std::make_unique<Device>(connection)->serve();
        close(connection);
    }
    unlink(argv[1]);
    return 0;
}
