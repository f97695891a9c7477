// DCTCP flows on a fat tree in htsim (Broadcom/csg-htsim), as the benchmark of the simulator wants them beside its own.
//
//     htsim_flows HOSTS END_MS < FLOWS      lines of "start_ps src dst bytes", in the order of their starts
//
// 10 Gbit/s and 1 µs per link, 1,500 bytes per packet, queues of 250 packets. Prints one line of JSON: CPU seconds of the event
// loop alone, and the flows' completion times in µs, up to their last acknowledgement. Built in a clone, whose marking threshold
// for this kind of queue stands in the source:
//
//     sed -i '/case ECN:/,+1 s/memFromPkt(15)/memFromPkt(85)/' sim/datacenter/fat_tree_topology.cpp
//     make -C sim && make -C sim/datacenter htsim_tcp
//     g++ -O3 -I sim -I sim/datacenter htsim_flows.cc sim/datacenter/{fat_tree_topology,fat_tree_switch,firstfit,connection_matrix}.o \
//         -L sim -lhtsim -o htsim_flows

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <memory>
#include <vector>

#include "config.h"
#include "dctcp.h"
#include "eventlist.h"
#include "fat_tree_topology.h"
#include "network.h"

uint32_t RTT = 1;  // htsim's topologies want it, in microseconds.

namespace {

class Flow : public DCTCPSrc {
  public:
    Flow(EventList& events, simtime_picosec start, uint64_t bytes)
        : DCTCPSrc(nullptr, nullptr, events), start_(start), bytes_(bytes) {
        set_flowsize(bytes);
    }

    void receivePacket(Packet& packet) override {
        DCTCPSrc::receivePacket(packet);
        if (took_us < 0 && _last_acked >= bytes_) {
            took_us = timeAsUs(eventlist().now() - start_);
        }
    }

    double took_us = -1;

  private:
    simtime_picosec start_;
    uint64_t bytes_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: htsim_flows HOSTS END_MS < FLOWS\n");
        return 2;
    }
    // What htsim tells on the way would be in the figures.
    std::cout.setstate(std::ios::failbit);
    std::srand(1);
    Packet::set_packet_size(1500);
    EventList events;
    events.setEndtime(timeFromMs(std::atoi(argv[2])));
    FatTreeTopology topology(std::atoi(argv[1]), speedFromMbps(10000.0), memFromPkt(250), nullptr, &events, nullptr, ECN,
                             timeFromUs(1u), 0);
    TcpRtxTimerScanner scanner(timeFromMs(10), events);
    std::vector<std::unique_ptr<Flow>> flows;
    unsigned long long start, bytes;
    unsigned src, dst;
    while (std::scanf("%llu %u %u %llu", &start, &src, &dst, &bytes) == 4) {
        flows.push_back(std::make_unique<Flow>(events, start, bytes));
        auto* sink = new TcpSink();
        const auto* there = topology.get_bidir_paths(src, dst, false);
        const auto* back = topology.get_bidir_paths(dst, src, false);
        const size_t choice = std::rand() % there->size();
        auto* out = new Route(*there->at(choice));
        auto* in = new Route(*back->at(choice));
        out->push_back(sink);
        in->push_back(flows.back().get());
        scanner.registerTcp(*flows.back());
        flows.back()->connect(*out, *in, *sink, start);
    }
    const std::clock_t before = std::clock();
    while (events.doNextEvent()) {
    }
    std::printf("{\"cpu_s\": %.6f, \"fct_us\": [", double(std::clock() - before) / CLOCKS_PER_SEC);
    const char* comma = "";
    for (const auto& flow : flows) {
        if (flow->took_us >= 0) {
            std::printf("%s%.3f", comma, flow->took_us);
            comma = ", ";
        }
    }
    std::printf("]}\n");
}
