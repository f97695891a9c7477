// Gives each flow a class of a token bucket (htb), whose classes take turns: a queue per flow, as hosts have with
// fq_codel or fq, on kernels without them. Two flows in one class are rare.
//
// Given when it is compiled: CLASSES, FIRST_CLASS.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("classifier")
int classify(struct __sk_buff *skb)
{
	return FIRST_CLASS | (bpf_get_hash_recalc(skb) % CLASSES);
}

char _license[] SEC("license") = "Dual MIT/GPL";
