"""The all-gather bound of two boxes of 8 A100 by bisection over networkx's maximum flows: its computation time in
seconds.

    python bench/peers/plan_bound.py

The first step of ForestColl's tool, before it packs trees. Part of `make bench NAME=plan`; prints one number.
"""

from __future__ import annotations

import time

import networkx as nx


def boxes() -> nx.DiGraph:
    """GPUs 0 to 15 with 12 units to their box's switch and 1 to the network, both ways."""
    graph = nx.DiGraph()
    for gpu in range(16):
        for switch, units in ((f"box{gpu // 8}", 12), ("network", 1)):
            graph.add_edge(gpu, switch, capacity=units)
            graph.add_edge(switch, gpu, capacity=units)
    return graph


def reaches(graph: nx.DiGraph, shard: float) -> bool:
    """Whether every GPU can receive all 16 shards at this rate."""
    for gpu in range(16):
        graph.add_edge("source", gpu, capacity=shard)
    flows = (nx.maximum_flow_value(graph, "source", gpu) for gpu in range(16))
    return all(flow >= 16 * shard * (1 - 1e-9) for flow in flows)


def main() -> None:
    start = time.perf_counter()
    graph, low, high = boxes(), 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if reaches(graph, middle) else (low, middle)
    seconds = time.perf_counter() - start
    assert abs(16 * low - 208 / 15) < 1e-3, 16 * low
    print(seconds)


if __name__ == "__main__":
    main()
