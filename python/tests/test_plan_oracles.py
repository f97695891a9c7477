"""Rates of packed plans against independent oracles: networkx, scipy's HiGHS, brute force."""

import itertools
import json
import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from netsum.plan import Selection, pack, topology, verify

SEEDS = range(12)


def random_graph(seed: int, directed: bool) -> nx.DiGraph:
    """A strongly connected graph of 3 to 6 vertices, capacities 1 to 5; equal both ways unless `directed`."""
    rng = random.Random(seed)
    n = rng.randint(3, 6)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    pairs = [(rng.randrange(v), v) for v in range(1, n)]
    pairs += [(a, b) for a, b in itertools.combinations(range(n), 2) if rng.random() < 0.4]
    for a, b in set(pairs):
        there, back = rng.randint(1, 5), rng.randint(1, 5)
        graph.add_edge(a, b, capacity=there)
        graph.add_edge(b, a, capacity=back if directed else there)
    return graph


@pytest.fixture
def planned(tmp_path):
    def plan(graph: nx.DiGraph, collective: str, root: int = 0) -> float:
        file = tmp_path / "graph.json"
        file.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
        fabric = topology(Selection(str(file)))
        report = pack(fabric, collective, root)
        assert report["optimal"]
        assert verify(json.dumps(report["plan"]), fabric) is None
        return report["rate"]

    return plan


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_broadcast_is_the_least_cut(planned, seed, directed):
    graph = random_graph(seed, directed)
    for root in graph:
        cut = min(nx.maximum_flow_value(graph, root, v) for v in graph if v != root)
        assert planned(graph, "broadcast", root) == pytest.approx(cut)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_allgather_is_the_least_way_out_of_any_set(planned, seed, directed):
    graph = random_graph(seed, directed)
    n = len(graph)
    sets = itertools.chain.from_iterable(itertools.combinations(range(n), k) for k in range(1, n))
    edges = graph.edges(data="capacity")
    out = (Fraction(sum(c for a, b, c in edges if a in s and b not in s), len(s)) for s in sets)
    assert planned(graph, "allgather") == pytest.approx(float(n * min(out)))


def concurrent_flow(graph: nx.DiGraph) -> float:
    """The best rate of an all-to-all, as it is defined: the same flow between every two vertices, within capacities.

    Variables are the flow of each source on each arc, and the rate of a pair last, of which a rank's buffer has n.
    """
    n, arcs = len(graph), list(graph.edges(data="capacity"))
    m = len(arcs)
    keep, keep_values = [], []
    for source in range(n):
        for vertex in range(n):
            if vertex == source:
                continue
            row = np.zeros(n * m + 1)
            for number, (a, b, _) in enumerate(arcs):
                row[source * m + number] += (b == vertex) - (a == vertex)
            row[-1] = -1
            keep.append(row)
            keep_values.append(0)
    room = np.hstack([np.tile(np.eye(m), n), np.zeros((m, 1))])
    value = np.zeros(n * m + 1)
    value[-1] = -1
    found = linprog(value, room, [c for _, _, c in arcs], np.array(keep), keep_values, method="highs")
    assert found.status == 0
    return -found.fun * n


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(100))
def test_alltoall_is_the_greatest_flow_of_all_pairs_at_once(planned, seed, directed):
    graph = random_graph(seed, directed)
    assert planned(graph, "alltoall") == pytest.approx(concurrent_flow(graph))


def partitions(items: list) -> list[list[list]]:
    """All partitions of a list."""
    if not items:
        return [[]]
    first, *rest = items
    found = []
    for smaller in partitions(rest):
        found += [[*smaller[:i], [first, *part], *smaller[i + 1 :]] for i, part in enumerate(smaller)]
        found.append([[first], *smaller])
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_allreduce_is_the_strength(planned, seed):
    graph = random_graph(seed, directed=False)
    best = []
    for parts in partitions(list(graph)):
        if len(parts) > 1:
            part = {v: i for i, members in enumerate(parts) for v in members}
            across = sum(c for a, b, c in graph.edges(data="capacity") if a < b and part[a] != part[b])
            best.append(Fraction(across, len(parts) - 1))
    assert planned(graph, "allreduce") == pytest.approx(float(min(best)))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_allreduce_is_the_optimum_of_a_linear_programme(planned, seed, directed):
    graph = random_graph(seed, directed)
    assert planned(graph, "allreduce") == pytest.approx(allreduce_by_flows(graph), rel=1e-6)


def allreduce_by_flows(graph: nx.DiGraph) -> float:
    """Capacity split into a part for data going down and one for sums going up; for each GPU a flow of all roots'
    data to it fits in the one, and the mirror image in the other (Edmonds: then trees exist)."""
    edges, n = list(graph.edges(data="capacity")), len(graph)
    m = len(edges)
    # Variables: x per root, share of each edge for data, then per way and sink a flow on edges and one from the roots.
    down = n
    flows = n + m
    size = flows + 2 * n * (m + n)
    rows, limits, equal = [], [], []
    for way in range(2):
        for sink in range(n):
            base = flows + (way * n + sink) * (m + n)
            for v in range(n):
                row = np.zeros(size)
                for e, (a, b, _) in enumerate(edges):
                    into, out = (b, a) if way == 0 else (a, b)
                    row[base + e] += (into == v) - (out == v)
                row[base + m + v] = 1.0
                if v == sink:
                    row[:n] -= 1.0
                equal.append(row)
                taken = np.zeros(size)
                taken[base + m + v], taken[v] = 1.0, -1.0
                rows.append(taken)
                limits.append(0.0)
            for e, (_, _, capacity) in enumerate(edges):
                row = np.zeros(size)
                row[base + e] = 1.0
                row[down + e] = -1.0 if way == 0 else 1.0
                rows.append(row)
                limits.append(0.0 if way == 0 else capacity)
    bounds = [(0, None)] * n + [(0, c) for _, _, c in edges] + [(0, None)] * (size - flows)
    cost = np.zeros(size)
    cost[:n] = -1.0
    found = linprog(cost, np.array(rows), np.array(limits), np.array(equal), np.zeros(len(equal)), bounds)
    assert found.success
    return -found.fun
