// When flows of ns-3 begin and end: what ns3_permutation.cc and ns3_loss.cc share.

#include <vector>

namespace peer
{
using namespace ns3;

struct Flow
{
    uint64_t received = 0;
    int64_t first_sent_ps = -1;
    int64_t last_received_ps = -1;
};

std::vector<Flow> flows;

void
Sent(uint32_t flow, Ptr<const Packet>)
{
    if (flows[flow].first_sent_ps < 0)
    {
        flows[flow].first_sent_ps = Simulator::Now().GetPicoSeconds();
    }
}

void
Received(uint32_t flow, Ptr<const Packet> packet, const Address&)
{
    flows[flow].received += packet->GetSize();
    flows[flow].last_received_ps = Simulator::Now().GetPicoSeconds();
}
} // namespace peer
