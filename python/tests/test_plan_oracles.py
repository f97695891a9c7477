"""Rates of packed plans against independent oracles: networkx, scipy's HiGHS, brute force."""

import itertools
import json
import random
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from scipy.optimize import linprog

from netsum.plan import Group, Selection, pack, pack_groups, topology, verify, verify_proven

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


class Programme:
    """A linear programme whose variables, all at least 0, are made as they are needed."""

    def __init__(self) -> None:
        self.size = 0
        self.below: list[tuple[dict[int, float], float]] = []
        self.equal: list[tuple[dict[int, float], float]] = []

    def variables(self, keys) -> dict:
        named = {key: self.size + number for number, key in enumerate(keys)}
        self.size += len(named)
        return named

    def greatest(self, variable: int) -> float:
        def matrix(rows):
            dense = np.zeros((len(rows), self.size))
            for number, (row, _) in enumerate(rows):
                for column, factor in row.items():
                    dense[number, column] += factor
            return dense, [limit for _, limit in rows]

        value = np.zeros(self.size)
        value[variable] = -1
        found = linprog(value, *matrix(self.below), *matrix(self.equal), method="highs")
        assert found.status == 0
        return -found.fun


def rounds_by_flows(graph: nx.DiGraph, groups: list[Group]) -> float:
    """The most rounds that all groups can do: capacity is divided among groups and directions; a group's trees from
    some roots exist if in its part every GPU gets a flow of all roots' rates together (Edmonds)."""
    programme = Programme()
    rounds = programme.variables(["rounds"])["rounds"]
    used: dict[tuple, dict[int, float]] = {(a, b): {} for a, b in graph.edges}
    for group in groups:
        ranks, size = group.ranks, group.bytes / 1000
        ways = {"broadcast": [False], "reduce": [True], "allgather": [False], "reduce-scatter": [True]}
        rates = programme.variables(ranks)
        if group.collective == "allreduce":
            programme.equal.append(({**{rates[r]: 1 for r in ranks}, rounds: -size}, 0))
        elif group.collective in ("broadcast", "reduce"):
            for r in ranks:
                part = size if r == ranks[group.root] else 0
                programme.equal.append(({rates[r]: 1, rounds: -part}, 0))
        else:
            for r in ranks:
                programme.equal.append(({rates[r]: 1, rounds: -size / len(ranks)}, 0))
        for up in ways.get(group.collective, [False, True]):
            arcs = [(a, b) for a, b in graph.edges if a in ranks and b in ranks]
            part = programme.variables(arcs)
            for arc in arcs:
                used[arc][part[arc]] = 1
            for sink in ranks:
                flow, source = programme.variables(arcs), programme.variables(ranks)
                for arc in arcs:
                    programme.below.append(({flow[arc]: 1, part[arc]: -1}, 0))
                for vertex in ranks:
                    programme.below.append(({source[vertex]: 1, rates[vertex]: -1}, 0))
                    into = {flow[a, b]: 1 for a, b in arcs if (a if up else b) == vertex}
                    out = {flow[a, b]: -1 for a, b in arcs if (b if up else a) == vertex}
                    row = {**into, **out, source[vertex]: 1}
                    if vertex == sink:
                        # All of what the roots send arrives.
                        for r in ranks:
                            row[rates[r]] = row.get(rates[r], 0) - 1
                    programme.equal.append((row, 0))
    for a, b, capacity in graph.edges(data="capacity"):
        programme.below.append((used[a, b], capacity))
    # The solver calls numbers of 10¹⁰ beside 1 infeasible or unbounded: rounds of 1000 bytes, rates in GB/s.
    return programme.greatest(rounds) * 1e9 / 1000


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_groups_together_do_the_rounds_of_a_linear_programme(tmp_path, seed, directed):
    graph, rng = random_graph(seed, directed), random.Random(seed + 1000)
    kinds = ["allreduce", "allgather", "reduce-scatter", "broadcast", "reduce"]
    groups = []
    for number in range(rng.randint(2, 3)):
        ranks = sorted(rng.sample(list(graph), rng.randint(2, len(graph))))
        if nx.is_strongly_connected(graph.subgraph(ranks)):
            root = rng.randrange(len(ranks))
            groups.append(Group(str(number), ranks, rng.choice(kinds), 1000 * rng.randint(1, 6), root))
    if not groups:
        groups = [Group("all", list(graph), "allreduce", 1000)]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    fabric = topology(Selection(str(file)))
    plan = pack_groups(fabric, groups)
    found = verify_proven(json.dumps(plan), fabric)
    assert found is not None
    rate, bound = found
    assert bound is not None and float(bound / rate) - 1 < 1e-9
    # The fabric's capacities count GB/s.
    assert float(rate) == pytest.approx(rounds_by_flows(graph, groups), rel=1e-6)
