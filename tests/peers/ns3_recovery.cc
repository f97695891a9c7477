// What a TCP sender of ns-3 does about loss, as the RFCs have it. Proportional rate reduction of ns-3 3.44 counts what
// duplicate acknowledgements deliver twice and takes what is in flight for what was (its issues 1350 and 1351), and its
// DCTCP answers loss by the estimate of marks (1012). All three were mended after 3.48; the Python package is 3.44.
// Compiled by cling through ns-3's Python package, before ns3_loss.cc; see test_sim_ns3.py.

#include <algorithm>
#include <utility>

namespace peer
{
using namespace ns3;

// Proportional rate reduction of RFC 9937 (and 6937), with slow start where an acknowledgement is safe.
class ProportionalReduction : public TcpPrrRecovery
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("peer::ProportionalReduction")
                               .SetParent<TcpPrrRecovery>()
                               .AddConstructor<ProportionalReduction>();
        return id;
    }

    TypeId GetInstanceTypeId() const override
    {
        return GetTypeId();
    }

    void EnterRecovery(Ptr<TcpSocketState> tcb, uint32_t duplicates, uint32_t outstanding, uint32_t delivered) override
    {
        delivered_ = 0;
        sent_ = 0;
        bool marks = tcb->m_congState == TcpSocketState::CA_CWR;
        int64_t reported = marks ? 0 : int64_t(duplicates) * tcb->m_segmentSize;
        flight_ = std::max<int64_t>(int64_t(outstanding) - reported + delivered, tcb->m_segmentSize);
        // For marks the socket calls DoRecovery for the same acknowledgement.
        if (!marks)
        {
            DoRecovery(tcb, delivered, true);
        }
    }

    void DoRecovery(Ptr<TcpSocketState> tcb, uint32_t delivered, bool) override
    {
        if (delivered == 0)
        {
            return;
        }
        delivered_ += delivered;
        int64_t segment = tcb->m_segmentSize;
        int64_t pipe = tcb->m_bytesInFlight.Get();
        int64_t threshold = tcb->m_ssThresh.Get();
        int64_t more = 0;
        if (pipe > threshold)
        {
            more = (delivered_ * threshold + flight_ - 1) / flight_ - sent_;
        }
        else
        {
            int64_t limit = std::max<int64_t>(delivered_ - sent_, delivered);
            limit += tcb->m_isRetransDataAcked ? segment : 0;
            more = std::min(limit, threshold - pipe);
        }
        more = std::max(more, sent_ > 0 ? 0 : segment);
        tcb->m_cWnd = pipe + more;
        tcb->m_cWndInfl = tcb->m_cWnd;
    }

    void UpdateBytesSent(uint32_t bytes) override
    {
        sent_ += bytes;
    }

    Ptr<TcpRecoveryOps> Fork() override
    {
        return CopyObject<ProportionalReduction>(this);
    }

  private:
    int64_t delivered_ = 0;
    int64_t sent_ = 0;
    int64_t flight_ = 0;
};

// Growth of the window by what is newly delivered, as in Linux. The socket counts everything that the acknowledgement
// which ends a recovery covers, also what arrived and was reported long before.
template <class Base>
class Growth : public Base
{
  public:
    void CongestionStateSet(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCongState_t state) override
    {
        ends_ = recovering_ && state == TcpSocketState::CA_OPEN;
        recovering_ = state == TcpSocketState::CA_RECOVERY;
        Base::CongestionStateSet(tcb, state);
    }

    void IncreaseWindow(Ptr<TcpSocketState> tcb, uint32_t segments) override
    {
        Base::IncreaseWindow(tcb, std::exchange(ends_, false) ? std::min(segments, 1U) : segments);
    }

  private:
    bool recovering_ = false;
    bool ends_ = false;
};

class Reno : public Growth<TcpLinuxReno>
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("peer::Reno").SetParent<TcpLinuxReno>().AddConstructor<Reno>();
        return id;
    }

    TypeId GetInstanceTypeId() const override
    {
        return GetTypeId();
    }

    Ptr<TcpCongestionOps> Fork() override
    {
        return CopyObject<Reno>(this);
    }
};

// DCTCP that halves its window after a loss (RFC 8257, section 3.5).
class Dctcp : public Growth<TcpDctcp>
{
  public:
    static TypeId GetTypeId()
    {
        static TypeId id = TypeId("peer::Dctcp").SetParent<TcpDctcp>().AddConstructor<Dctcp>();
        return id;
    }

    TypeId GetInstanceTypeId() const override
    {
        return GetTypeId();
    }

    void CongestionStateSet(Ptr<TcpSocketState> tcb, const TcpSocketState::TcpCongState_t state) override
    {
        // The socket asks for the threshold after it has set CA_RECOVERY, and before it sets CA_LOSS.
        lost_ = state == TcpSocketState::CA_RECOVERY;
        if (state == TcpSocketState::CA_LOSS && asked_)
        {
            tcb->m_ssThresh = Half(tcb);
        }
        asked_ = false;
        Growth<TcpDctcp>::CongestionStateSet(tcb, state);
    }

    uint32_t GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t pipe) override
    {
        asked_ = !lost_;
        return std::exchange(lost_, false) ? Half(tcb) : TcpDctcp::GetSsThresh(tcb, pipe);
    }

    Ptr<TcpCongestionOps> Fork() override
    {
        return CopyObject<Dctcp>(this);
    }

  private:
    static uint32_t Half(Ptr<const TcpSocketState> tcb)
    {
        return std::max<uint32_t>(tcb->m_cWnd / 2, 2 * tcb->m_segmentSize);
    }

    bool lost_ = false;
    bool asked_ = false;
};
} // namespace peer
