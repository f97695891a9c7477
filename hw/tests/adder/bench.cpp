// Adder bench: every pair of a set of corner values, and random pairs by class, against the processor's own
// binary32 addition. Also the tree: its order of additions against the same order in C++.
//
// bench [RANDOM_PAIRS [SEED]]; prints the coverage; exit status 1 at the first mismatch.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#include "Vadder_bench_top.h"
#include "verilated.h"

namespace {

constexpr int kPorts = 4;
constexpr int kAddStages = 8;
constexpr int kTreeStages = 2 * kAddStages;

uint32_t add(uint32_t a, uint32_t b) {
    float x, y;
    std::memcpy(&x, &a, 4);
    std::memcpy(&y, &b, 4);
    const float sum = x + y;
    uint32_t bits;
    std::memcpy(&bits, &sum, 4);
    return std::isnan(sum) ? 0x7fc00000u : bits;
}

// xoshiro-like quality is not needed; splitmix64 has no bad seed.
struct Random {
    uint64_t state;
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15ull;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
};

// Properties that some results must have, as coverage of the vectors.
struct Coverage {
    uint64_t nan = 0, infinity_in = 0, overflow = 0, subnormal_out = 0, zero = 0, negative_zero = 0;
    uint64_t cancelled = 0, tie_up = 0, tie_down = 0, far_apart = 0;

    void note(uint32_t a, uint32_t b, uint32_t sum) {
        const uint32_t ea = a >> 23 & 255, eb = b >> 23 & 255, es = sum >> 23 & 255;
        nan += sum == 0x7fc00000u;
        infinity_in += (ea == 255 || eb == 255) && es == 255;
        overflow += ea != 255 && eb != 255 && es == 255;
        subnormal_out += es == 0 && (sum & 0x7fffff) != 0;
        zero += sum == 0;
        negative_zero += sum == 0x80000000u;
        far_apart += ea > eb + 40 || eb > ea + 40;
        const uint32_t larger = ea > eb ? ea : eb;
        cancelled += larger < 255 && es + 8 < larger;
        if (ea < 255 && eb < 255 && es < 255 && es > 0) {
            float x, y, s;
            std::memcpy(&x, &a, 4);
            std::memcpy(&y, &b, 4);
            std::memcpy(&s, &sum, 4);
            const double off = (static_cast<double>(x) + y) - s;
            // Exact in binary64 unless the exponents are far apart; then it is no tie.
            if (std::fabs(off) == std::ldexp(1.0, static_cast<int>(es) - 127 - 24)) {
                (std::fabs(static_cast<double>(s)) > std::fabs(static_cast<double>(x) + y) ? tie_up : tie_down)++;
            }
        }
    }

    bool print() const {
        const struct {
            const char* name;
            uint64_t count;
        } rows[] = {{"NaN", nan}, {"infinity in", infinity_in}, {"overflow", overflow},
                    {"subnormal out", subnormal_out}, {"+0 out", zero}, {"-0 out", negative_zero},
                    {"cancellation of 8 bits or more", cancelled}, {"tie rounded up", tie_up},
                    {"tie rounded down", tie_down}, {"exponents more than 40 apart", far_apart}};
        bool complete = true;
        for (const auto& row : rows) {
            std::printf("  %-32s %llu\n", row.name, static_cast<unsigned long long>(row.count));
            complete = complete && row.count > 0;
        }
        return complete;
    }
};

struct Bench {
    VerilatedContext context;
    Vadder_bench_top top{&context};
    std::deque<std::pair<uint64_t, uint32_t>> sums, trees;
    Coverage coverage;
    uint64_t additions = 0, tree_sums = 0;

    // One clock cycle with two terms for the adder and four for the tree.
    void cycle(uint32_t a, uint32_t b, const uint32_t (&terms)[kPorts]) {
        top.a = a;
        top.b = b;
        for (int i = 0; i < kPorts; i++) top.terms[i] = terms[i];
        top.clk = 0;
        top.eval();
        top.clk = 1;
        top.eval();
        const uint32_t sum = add(a, b);
        coverage.note(a, b, sum);
        sums.emplace_back(static_cast<uint64_t>(a) << 32 | b, sum);
        trees.emplace_back(0, add(add(terms[0], terms[1]), add(terms[2], terms[3])));
        if (sums.size() == kAddStages) {
            const auto [operands, expected] = sums.front();
            sums.pop_front();
            additions++;
            if (top.sum != expected) {
                std::printf("MISMATCH %08x + %08x = %08x, the adder says %08x\n",
                            static_cast<uint32_t>(operands >> 32), static_cast<uint32_t>(operands),
                            expected, top.sum);
                std::exit(1);
            }
        }
        if (trees.size() == kTreeStages) {
            const uint32_t expected = trees.front().second;
            trees.pop_front();
            tree_sums++;
            if (top.tree_sum != expected) {
                std::printf("MISMATCH tree: expected %08x, got %08x\n", expected, top.tree_sum);
                std::exit(1);
            }
        }
    }
};

// Exponents and mantissas at boundaries: ends, neighbours of ends, one-hot, one-cold, runs.
std::vector<uint32_t> corners() {
    std::vector<uint32_t> exponents = {0, 1, 2, 3, 23, 24, 25, 26, 27, 28, 64, 102, 103, 104, 125,
                                       126, 127, 128, 129, 150, 151, 152, 230, 252, 253, 254, 255};
    std::vector<uint32_t> mantissas = {0, 1, 2, 3, 0x3fffff, 0x400000, 0x400001, 0x7ffffe, 0x7fffff,
                                       0x555555, 0x2aaaaa};
    for (int bit = 2; bit < 22; bit += 3) {
        mantissas.push_back(1u << bit);
        mantissas.push_back(0x7fffffu ^ (1u << bit));
        mantissas.push_back((1u << bit) - 1);
        mantissas.push_back(0x7fffffu & ~((1u << bit) - 1));
    }
    std::vector<uint32_t> values;
    for (uint32_t sign : {0u, 0x80000000u})
        for (uint32_t e : exponents)
            for (uint32_t m : mantissas) values.push_back(sign | e << 23 | m);
    return values;
}

uint32_t gradient(Random& random) {
    // A sum of uniforms is near enough to a normal deviate of sigma 0.01.
    float x = 0;
    for (int i = 0; i < 12; i++) x += static_cast<float>(random.below(1 << 24)) / (1 << 24);
    x = (x - 6) * 0.01f;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

std::pair<uint32_t, uint32_t> random_pair(Random& random) {
    const uint32_t any = static_cast<uint32_t>(random.next());
    const uint32_t other = static_cast<uint32_t>(random.next());
    switch (random.below(8)) {
        case 0: return {any, other};
        case 1: return {gradient(random), gradient(random)};
        case 2: {  // exponents close to each other
            const uint32_t e = (any >> 23 & 255) + random.below(5);
            return {any, (other & 0x807fffffu) | (e > 254 ? 254 : e) << 23};
        }
        case 3: return {any, (any ^ 0x80000000u) ^ random.below(8)};  // cancellation
        case 4: return {any & 0x80ffffffu, other & 0x80ffffffu};      // subnormals and their neighbours
        case 5: return {(any & 0x80ffffffu) | 0x7e000000u, (other & 0x80ffffffu) | 0x7e000000u};
        case 6: {  // a tie, or one off it: the second term is half a unit in the last place of the first
            const uint32_t e = 30 + random.below(220);
            const uint32_t tail = random.below(4) == 0 ? random.below(4) : 0;
            return {(any & 0x807fffffu) | e << 23, (other & 0x80000000u) | (e - 24) << 23 | tail};
        }
        default: {  // exponents 20 to 30 apart, short mantissas: ties and sticky bits
            const uint32_t e = 40 + random.below(200);
            return {(any & 0x807fffffu) | e << 23, (other & 0x80700000u) | (e - 20 - random.below(11)) << 23};
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    const uint64_t pairs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 10'000'000;
    Random random{argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1};
    Bench bench;
    const std::vector<uint32_t> values = corners();
    const uint32_t count = static_cast<uint32_t>(values.size());
    for (uint32_t a : values) {
        for (uint32_t b : values) {
            const uint32_t terms[kPorts] = {a, b, values[random.below(count)], values[random.below(count)]};
            bench.cycle(a, b, terms);
        }
    }
    const uint64_t corner_pairs = static_cast<uint64_t>(count) * count;
    for (uint64_t i = 0; i < pairs; i++) {
        const auto [a, b] = random_pair(random);
        const auto [c, d] = random_pair(random);
        const uint32_t mask = random.below(16);  // absent positions are -0
        const uint32_t given[kPorts] = {a, c, b, d};
        uint32_t terms[kPorts];
        for (int p = 0; p < kPorts; p++) terms[p] = mask >> p & 1 ? given[p] : 0x80000000u;
        bench.cycle(a, b, terms);
    }
    const uint32_t zeros[kPorts] = {0, 0, 0, 0};
    for (int i = 0; i < kTreeStages; i++) bench.cycle(0, 0, zeros);
    std::printf("adder: %llu corner pairs, %llu random pairs, %llu additions and %llu tree sums, no mismatch\n",
                static_cast<unsigned long long>(corner_pairs), static_cast<unsigned long long>(pairs),
                static_cast<unsigned long long>(bench.additions),
                static_cast<unsigned long long>(bench.tree_sums));
    if (!bench.coverage.print()) {
        std::printf("INCOMPLETE: a class above was never met\n");
        return 1;
    }
    return 0;
}
