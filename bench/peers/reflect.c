/* Sends back every datagram that it gets, by a UDP socket or by AF_XDP, and makes the load for that: what a packet in
 * and a packet out cost. For bench/af_xdp.py, which compiles it.
 *
 *     reflect load HERE THERE PORT SECONDS    trains of datagrams, a window of them; prints how many came back, how many
 *                                             did not, seconds, and seconds of its processor
 *     reflect trains HERE PORT                UDP with segmentation offload both ways (UDP_SEGMENT, UDP_GRO)
 *     reflect packets HERE PORT               UDP, 64 datagrams per call
 *     reflect af_xdp DEVICE OBJECT            AF_XDP in copy mode; OBJECT: redirect.bpf.c, compiled
 *
 * The last three run until SIGTERM and print seconds of their processor. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

enum { PAYLOAD = 1440, TRAIN = 44, WINDOW = 256, BATCH = 64, FRAMES = 4096, FRAME = 2048, BUFFER = 8 << 20 };
enum { SOL_UDP_ = 17, UDP_SEGMENT_ = 103, UDP_GRO_ = 104 };
enum { MAC = 6, SOURCE_IP = 26, SOURCE_PORT = 34, CHECKSUM = 40 };
#define LOST_AFTER_S 0.02

static volatile sig_atomic_t over;

static void stop(int signal) {
    (void)signal;
    over = 1;
}

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static double cpu_s(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static struct sockaddr_in address_of(const char *host, int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    need(inet_pton(AF_INET, host, &address.sin_addr) == 1, host);
    return address;
}

static int bound(const char *host, int port, int joins) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), bytes = BUFFER;
    struct sockaddr_in address = address_of(host, port);
    struct timeval wait = {.tv_usec = 20000};
    need(bind(fd, (void *)&address, sizeof address) == 0, "bind");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    need(setsockopt(fd, SOL_UDP_, UDP_GRO_, &joins, sizeof joins) == 0, "UDP_GRO");
    return fd;
}

/* The length of a train, and of each of its datagrams but the last. */
static ssize_t receive(int fd, char *buffer, size_t room, struct sockaddr_in *from, int *each) {
    char control[64];
    struct iovec iov = {buffer, room};
    struct msghdr message = {from, sizeof *from, &iov, 1, control, sizeof control, 0};
    ssize_t bytes = recvmsg(fd, &message, 0);
    *each = (int)bytes;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); bytes > 0 && c; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == SOL_UDP_ && c->cmsg_type == UDP_GRO_)
            memcpy(each, CMSG_DATA(c), sizeof *each);
    return bytes;
}

static void send_train(int fd, char *buffer, size_t bytes, struct sockaddr_in *to, int each) {
    char control[CMSG_SPACE(sizeof(uint16_t))] = {0};
    struct iovec iov = {buffer, bytes};
    struct msghdr message = {to, sizeof *to, &iov, 1, NULL, 0, 0};
    if (bytes > (size_t)each) {
        uint16_t segment = (uint16_t)each;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        *c = (struct cmsghdr){CMSG_LEN(sizeof segment), SOL_UDP_, UDP_SEGMENT_};
        memcpy(CMSG_DATA(c), &segment, sizeof segment);
    }
    need(sendmsg(fd, &message, 0) >= 0 || errno == EAGAIN || errno == ENOBUFS || errno == ECONNREFUSED, "sendmsg");
}

static char train[1 << 16];

static void load(const char *here, const char *there, int port, double seconds) {
    static char answers[1 << 16];
    int fd = bound(here, 0, 1), each;
    struct sockaddr_in to = address_of(there, port), from;
    long sent = 0, back = 0, lost = 0;
    double began = now_s(), heard = began;
    while (now_s() - began < seconds) {
        for (; sent - back - lost + TRAIN <= WINDOW; sent += TRAIN)
            send_train(fd, train, TRAIN * PAYLOAD, &to, PAYLOAD);
        ssize_t bytes = receive(fd, answers, sizeof answers, &from, &each);
        if (bytes > 0) {
            back += (bytes + each - 1) / each;
            heard = now_s();
        } else if (now_s() - heard > LOST_AFTER_S) {
            lost = sent - back;
            heard = now_s();
        }
    }
    printf("%ld %ld %.4f %.4f\n", back, lost, now_s() - began, cpu_s());
}

static void reflect_trains(int fd) {
    struct sockaddr_in from;
    int each;
    while (!over) {
        ssize_t bytes = receive(fd, train, sizeof train, &from, &each);
        if (bytes > 0)
            send_train(fd, train, (size_t)bytes, &from, each);
    }
}

static void reflect_packets(int fd) {
    static char space[BATCH][FRAME];
    struct mmsghdr messages[BATCH];
    struct iovec iov[BATCH];
    struct sockaddr_in from[BATCH];
    while (!over) {
        for (int i = 0; i < BATCH; i++) {
            iov[i] = (struct iovec){space[i], FRAME};
            messages[i].msg_hdr = (struct msghdr){&from[i], sizeof from[i], &iov[i], 1, NULL, 0, 0};
        }
        int count = recvmmsg(fd, messages, BATCH, MSG_WAITFORONE, NULL);
        for (int i = 0; i < count; i++)
            iov[i].iov_len = messages[i].msg_len;
        if (count > 0)
            sendmmsg(fd, messages, (unsigned)count, 0);
    }
}

/* One of the four rings that a socket shares with the kernel. */
typedef struct {
    unsigned *producer, *consumer;
    void *entries;
} Ring;

static Ring ring_of(int fd, int option, off_t page, const struct xdp_ring_offset *at, size_t entry) {
    int count = FRAMES;
    need(setsockopt(fd, SOL_XDP, option, &count, sizeof count) == 0, "ring");
    char *map = mmap(NULL, at->desc + FRAMES * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);
    need(map != MAP_FAILED, "mmap of a ring");
    return (Ring){(void *)(map + at->producer), (void *)(map + at->consumer), map + at->desc};
}

static unsigned filled(const Ring *ring) {
    return __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE) - __atomic_load_n(ring->consumer, __ATOMIC_ACQUIRE);
}

static void advance(unsigned *index, unsigned by) {
    __atomic_store_n(index, *index + by, __ATOMIC_RELEASE);
}

static void swap(unsigned char *a, unsigned char *b, size_t bytes) {
    unsigned char kept[MAC];
    memcpy(kept, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, kept, bytes);
}

static void reflect_af_xdp(const char *device, const char *object) {
    int fd = socket(AF_XDP, SOCK_RAW, 0);
    need(fd >= 0, "AF_XDP");
    unsigned index = if_nametoindex(device), key = 0;
    const int rights = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE;
    unsigned char *memory = mmap(NULL, FRAMES * FRAME, rights, flags, -1, 0);
    struct xdp_umem_reg region = {.addr = (unsigned long)memory, .len = FRAMES * FRAME, .chunk_size = FRAME};
    need(setsockopt(fd, SOL_XDP, XDP_UMEM_REG, &region, sizeof region) == 0, "XDP_UMEM_REG");
    struct xdp_mmap_offsets at;
    socklen_t bytes = sizeof at;
    need(getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &at, &bytes) == 0, "XDP_MMAP_OFFSETS");
    Ring fill = ring_of(fd, XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING, &at.fr, sizeof(uint64_t));
    Ring done = ring_of(fd, XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING, &at.cr, sizeof(uint64_t));
    Ring in = ring_of(fd, XDP_RX_RING, XDP_PGOFF_RX_RING, &at.rx, sizeof(struct xdp_desc));
    Ring out = ring_of(fd, XDP_TX_RING, XDP_PGOFF_TX_RING, &at.tx, sizeof(struct xdp_desc));
    struct sockaddr_xdp address = {AF_XDP, XDP_COPY | XDP_USE_NEED_WAKEUP, index, 0, 0};
    need(bind(fd, (void *)&address, sizeof address) == 0, "bind of AF_XDP");
    struct bpf_object *bpf = bpf_object__open_file(object, NULL);
    need(bpf && bpf_object__load(bpf) == 0, object);
    int map = bpf_object__find_map_fd_by_name(bpf, "sockets");
    need(bpf_map_update_elem(map, &key, &fd, 0) == 0, "the map of sockets");
    int program = bpf_program__fd(bpf_object__find_program_by_name(bpf, "redirect"));
    need(bpf_xdp_attach((int)index, program, XDP_FLAGS_DRV_MODE, NULL) == 0, "attach");
    uint64_t *free_frames = fill.entries, *sent_frames = done.entries;
    struct xdp_desc *received = in.entries, *sending = out.entries;
    for (unsigned i = 0; i < FRAMES; i++)
        free_frames[i] = (uint64_t)i * FRAME;
    advance(fill.producer, FRAMES);
    struct pollfd readable = {fd, POLLIN, 0};
    while (!over) {
        unsigned sent = filled(&done), count = filled(&in);
        for (unsigned i = 0; i < sent; i++)
            free_frames[(*fill.producer + i) % FRAMES] = sent_frames[(*done.consumer + i) % FRAMES];
        advance(done.consumer, sent);
        advance(fill.producer, sent);
        if (count == 0) {
            poll(&readable, 1, 20);
            continue;
        }
        for (unsigned i = 0; i < count; i++) {
            struct xdp_desc frame = received[(*in.consumer + i) % FRAMES];
            unsigned char *head = memory + frame.addr;
            swap(head, head + MAC, MAC);
            swap(head + SOURCE_IP, head + SOURCE_IP + 4, 4);
            swap(head + SOURCE_PORT, head + SOURCE_PORT + 2, 2);
            /* On veth it is not filled in. */
            memset(head + CHECKSUM, 0, 2);
            sending[(*out.producer + i) % FRAMES] = frame;
        }
        advance(in.consumer, count);
        advance(out.producer, count);
        /* In copy mode a call sends some of them. */
        while (filled(&out) > 0 && !over) {
            ssize_t answer = sendto(fd, NULL, 0, MSG_DONTWAIT, NULL, 0);
            need(answer >= 0 || errno == EAGAIN || errno == EBUSY || errno == ENOBUFS, "sendto");
        }
    }
    bpf_xdp_detach((int)index, XDP_FLAGS_DRV_MODE, NULL);
}

int main(int count, char **words) {
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    const char *what = count > 1 ? words[1] : "";
    if (count == 6 && !strcmp(what, "load")) {
        load(words[2], words[3], atoi(words[4]), atof(words[5]));
        return 0;
    }
    if (count == 4 && !strcmp(what, "trains"))
        reflect_trains(bound(words[2], atoi(words[3]), 1));
    else if (count == 4 && !strcmp(what, "packets"))
        reflect_packets(bound(words[2], atoi(words[3]), 0));
    else if (count == 4 && !strcmp(what, "af_xdp"))
        reflect_af_xdp(words[2], words[3]);
    else {
        fprintf(stderr, "reflect.c says what it takes\n");
        return 2;
    }
    printf("%.4f\n", cpu_s());
    return 0;
}
