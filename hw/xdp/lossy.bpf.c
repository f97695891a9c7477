// A queue that loses one packet in 50, for tests: the traffic control hook of an interface, on the way out.

#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "Dual BSD/GPL";

SEC("tcx/egress")
int lose(struct __sk_buff *skb)
{
	return bpf_get_prandom_u32() % 50 ? TC_ACT_OK : TC_ACT_SHOT;
}
