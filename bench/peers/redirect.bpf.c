// Hands UDP over IPv4 to an AF_XDP socket, for bench/af_xdp.py.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_XSKMAP);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} sockets SEC(".maps");

enum { ETHERTYPE_AT = 12, PROTOCOL_AT = 23, HEADERS = 42, IPV4 = 0x0008, UDP = 17 };

SEC("xdp")
int redirect(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    if (data + HEADERS > end || *(__u16 *)(data + ETHERTYPE_AT) != IPV4 || *(__u8 *)(data + PROTOCOL_AT) != UDP)
        return XDP_PASS;
    return bpf_redirect_map(&sockets, 0, XDP_PASS);
}

char _license[] SEC("license") = "Dual BSD/GPL";
