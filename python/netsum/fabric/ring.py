"""Bytes that a ring would have sent over each link for the same buffers."""

from itertools import pairwise

from netsum.fabric.description import Description


def ring_link_bytes(fabric: Description, placement: list[str], buffer_bytes: int) -> dict[str, float]:
    """Bytes per link, both directions together, of ring allreduces of `buffer_bytes` in total.

    placement: host of each rank. Rank r sends to rank r+1, the last to the first; each of these edges carries
    2(N-1)/N of the bytes (Patarasuk and Yuan 2009). Where several shortest paths join two hosts, they share the bytes
    equally.
    """
    size = len(placement)
    per_edge = 2 * (size - 1) / size * buffer_bytes if size > 1 else 0.0
    totals = {link.name: 0.0 for link in fabric.links}
    names = {frozenset(link.ends): link.name for link in fabric.links}
    for rank, host in enumerate(placement):
        paths = shortest_paths(fabric, host, placement[(rank + 1) % size])
        for path in paths:
            for one, other in pairwise(path):
                totals[names[frozenset((one, other))]] += per_edge / len(paths)
    return totals


def shortest_paths(fabric: Description, start: str, end: str) -> list[list[str]]:
    """All shortest paths between two nodes, each a list of names; one empty path from a host to itself."""
    if start == end:
        return [[]]
    paths = [[start]]
    seen = {start}
    while paths:
        longer = [[*path, next_] for path in paths for next_ in fabric.neighbours(path[-1]) if next_ not in seen]
        found = [path for path in longer if path[-1] == end]
        if found:
            return found
        seen |= {path[-1] for path in longer}
        paths = longer
    raise ValueError(f"no path from {start} to {end} in fabric '{fabric.name}'")
