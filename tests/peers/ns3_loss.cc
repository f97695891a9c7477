// Senders, one switch and one receiver in ns-3, with loss: chosen packets of a link, or a short queue at the switch.
// 1,448 bytes per segment, one acknowledgement per segment, links of 10 Gbit/s; hosts' own queues neither mark nor
// drop. Compiled by cling through ns-3's Python package, after ns3_flows.cc and ns3_recovery.cc; see test_sim_ns3.py.

#include <list>
#include <vector>

namespace peer
{
using namespace ns3;

// Drops packets by their number on a link, in the order of arrival, after `handshake` packets that do not count.
void
Drop(Ptr<NetDevice> device, const std::vector<uint32_t>& numbers, uint32_t handshake)
{
    std::list<uint32_t> list;
    for (uint32_t number : numbers)
    {
        list.push_back(number + handshake);
    }
    auto errors = CreateObject<ReceiveListErrorModel>();
    errors->SetList(list);
    device->SetAttribute("ReceiveErrorModel", PointerValue(errors));
}

// For each of `senders` flows of `bytes`: the time of its first segment and of the last byte received, in picoseconds.
// `recovery`: how senders recover. `starts_ns`: when each sender opens its connection. `data` and `acks`: numbers of
// the packets lost between the first sender and the switch, in either direction.
std::vector<int64_t>
Run(const std::string& socket,
    const std::string& recovery,
    uint32_t senders,
    uint32_t bytes,
    uint32_t mark,
    uint32_t queue,
    uint32_t latency_ns,
    const std::vector<uint32_t>& starts_ns,
    const std::vector<uint32_t>& data,
    const std::vector<uint32_t>& acks)
{
    Dctcp::GetTypeId();
    Reno::GetTypeId();
    ProportionalReduction::GetTypeId();
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue(socket));
    Config::SetDefault("ns3::TcpL4Protocol::RecoveryType", StringValue(recovery));
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
    // One packet waits in the device itself.
    Config::SetDefault("ns3::RedQueueDisc::MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::PACKETS, queue - 1)));

    NodeContainer hosts;
    hosts.Create(senders + 1);
    Ptr<Node> middle = CreateObject<Node>();
    InternetStackHelper stack;
    Ipv4GlobalRoutingHelper routing;
    stack.SetRoutingHelper(routing);
    stack.Install(hosts);
    stack.Install(middle);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("10Gbps"));
    link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(latency_ns)));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    TrafficControlHelper plain;
    plain.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
    TrafficControlHelper marking;
    marking.SetRootQueueDisc("ns3::RedQueueDisc", "LinkBandwidth", StringValue("10Gbps"));
    Ipv4AddressHelper address("10.0.0.0", "255.255.255.252");
    Ipv4Address target;
    for (uint32_t host = 0; host <= senders; host++)
    {
        auto devices = link.Install(hosts.Get(host), middle);
        plain.Install(devices.Get(0));
        marking.Install(devices.Get(1));
        auto interfaces = address.Assign(devices);
        address.NewNetwork();
        target = interfaces.GetAddress(0);
        if (host == 0)
        {
            // The connection takes two packets towards the receiver, and one back.
            Drop(devices.Get(1), data, 2);
            Drop(devices.Get(0), acks, 1);
        }
    }
    Ipv4GlobalRoutingHelper::PopulateRoutingTables();
    flows.assign(senders, Flow());
    for (uint32_t sender = 0; sender < senders; sender++)
    {
        uint16_t port = 5000 + sender;
        BulkSendHelper source("ns3::TcpSocketFactory", InetSocketAddress(target, port));
        source.SetAttribute("MaxBytes", UintegerValue(bytes));
        source.SetAttribute("SendSize", UintegerValue(1448));
        auto application = source.Install(hosts.Get(sender));
        application.Start(NanoSeconds(starts_ns[sender]));
        application.Get(0)->TraceConnectWithoutContext("Tx", MakeBoundCallback(&Sent, sender));
        PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), port));
        auto receiver = sink.Install(hosts.Get(senders));
        receiver.Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, sender));
    }
    Simulator::Stop(Seconds(5));
    Simulator::Run();
    std::vector<int64_t> times;
    for (const auto& flow : flows)
    {
        times.push_back(flow.first_sent_ps);
        times.push_back(flow.received == bytes ? flow.last_received_ps : -1);
    }
    Simulator::Destroy();
    return times;
}
} // namespace peer
