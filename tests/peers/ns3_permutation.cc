// A permutation on a k-ary fat tree in ns-3, with the parameters of netsum's simulator: DCTCP, 1,448 bytes per segment,
// one acknowledgement per segment, marking from `mark` packets, paths by the destination's digits. Compiled by cling
// through ns-3's Python package; after ns3_flows.cc; see test_sim_ns3.py.

#include <map>
#include <vector>

namespace peer
{
using namespace ns3;

struct Fabric
{
    NodeContainer nodes;
    std::vector<Ipv4Address> host_address;
    // For each pair of neighbours: the first one's interface, and the address of the second.
    std::map<std::pair<uint32_t, uint32_t>, std::pair<uint32_t, Ipv4Address>> towards;
};

void
Connect(Fabric& fabric, PointToPointHelper& link, TrafficControlHelper& queue, Ipv4AddressHelper& address, uint32_t a, uint32_t b)
{
    auto devices = link.Install(fabric.nodes.Get(a), fabric.nodes.Get(b));
    queue.Install(devices);
    auto interfaces = address.Assign(devices);
    address.NewNetwork();
    fabric.towards[{a, b}] = {interfaces.Get(0).second, interfaces.GetAddress(1)};
    fabric.towards[{b, a}] = {interfaces.Get(1).second, interfaces.GetAddress(0)};
}

void
Route(Fabric& fabric, uint32_t at, uint32_t next, uint32_t host)
{
    Ipv4StaticRoutingHelper helper;
    auto routing = helper.GetStaticRouting(fabric.nodes.Get(at)->GetObject<Ipv4>());
    auto [interface, gateway] = fabric.towards[{at, next}];
    routing->AddHostRouteTo(fabric.host_address[host], gateway, interface);
}

// Completion times in picoseconds, from the first segment sent to the last byte received, by sender.
std::vector<int64_t>
Permutation(uint32_t k, const std::vector<uint32_t>& to, uint32_t bytes, uint32_t mark)
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpDctcp"));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(4 << 20));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(4 << 20));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(10)));
    Config::SetDefault("ns3::RedQueueDisc::UseEcn", BooleanValue(true));
    Config::SetDefault("ns3::RedQueueDisc::UseHardDrop", BooleanValue(false));
    Config::SetDefault("ns3::RedQueueDisc::QW", DoubleValue(1));
    Config::SetDefault("ns3::RedQueueDisc::MinTh", DoubleValue(mark));
    Config::SetDefault("ns3::RedQueueDisc::MaxTh", DoubleValue(mark));
    Config::SetDefault("ns3::RedQueueDisc::MeanPktSize", UintegerValue(1500));
    Config::SetDefault("ns3::RedQueueDisc::MaxSize", QueueSizeValue(QueueSize("1000p")));

    // Nodes: hosts, then racks, aggregation switches and cores, each pod by pod.
    uint32_t half = k / 2, hosts = k * half * half, racks = hosts, aggs = racks + k * half, cores = aggs + k * half;
    Fabric fabric;
    fabric.nodes.Create(cores + half * half);
    InternetStackHelper stack;
    Ipv4StaticRoutingHelper routing;
    stack.SetRoutingHelper(routing);
    stack.Install(fabric.nodes);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    link.SetChannelAttribute("Delay", StringValue("1us"));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    TrafficControlHelper queue;
    queue.SetRootQueueDisc("ns3::RedQueueDisc", "LinkBandwidth", StringValue("10Gbps"), "LinkDelay", StringValue("1us"));
    Ipv4AddressHelper address("10.0.0.0", "255.255.255.252");
    for (uint32_t host = 0; host < hosts; host++)
    {
        Connect(fabric, link, queue, address, host, racks + host / half);
        fabric.host_address.push_back(fabric.towards[{racks + host / half, host}].second);
    }
    for (uint32_t pod = 0; pod < k; pod++)
    {
        for (uint32_t agg = 0; agg < half; agg++)
        {
            for (uint32_t i = 0; i < half; i++)
            {
                Connect(fabric, link, queue, address, racks + pod * half + i, aggs + pod * half + agg);
                Connect(fabric, link, queue, address, aggs + pod * half + agg, cores + agg * half + i);
            }
        }
    }
    for (uint32_t dst = 0; dst < hosts; dst++)
    {
        uint32_t rack = dst / half, pod = rack / half, up = dst % half, core = rack % half;
        for (uint32_t host = 0; host < hosts; host++)
        {
            if (host != dst)
            {
                Route(fabric, host, racks + host / half, dst);
            }
        }
        for (uint32_t r = 0; r < k * half; r++)
        {
            Route(fabric, racks + r, r == rack ? dst : aggs + r / half * half + up, dst);
        }
        for (uint32_t a = 0; a < k * half; a++)
        {
            uint32_t next = a / half == pod ? racks + rack : cores + a % half * half + core;
            Route(fabric, aggs + a, next, dst);
        }
        for (uint32_t c = 0; c < half * half; c++)
        {
            Route(fabric, cores + c, aggs + pod * half + c / half, dst);
        }
    }
    flows.assign(hosts, Flow());
    for (uint32_t src = 0; src < hosts; src++)
    {
        InetSocketAddress target(fabric.host_address[to[src]], 5000);
        BulkSendHelper sender("ns3::TcpSocketFactory", target);
        sender.SetAttribute("MaxBytes", UintegerValue(bytes));
        sender.SetAttribute("SendSize", UintegerValue(1448));
        auto application = sender.Install(fabric.nodes.Get(src));
        application.Get(0)->TraceConnectWithoutContext("Tx", MakeBoundCallback(&Sent, src));
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
        auto receiver = sink.Install(fabric.nodes.Get(to[src]));
        receiver.Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, src));
    }
    Simulator::Stop(Seconds(1));
    Simulator::Run();
    std::vector<int64_t> completion;
    for (const auto& flow : flows)
    {
        bool complete = flow.received == bytes;
        completion.push_back(complete ? flow.last_received_ps - flow.first_sent_ps : -1);
    }
    Simulator::Destroy();
    return completion;
}
} // namespace peer
