"""Plan allreduce trees for GPUs of a DGX-1V, with a proof that no plan is faster.

    python examples/plan_dgx.py

You see the rate of the plan, the bound that proves it optimal, how far rings are behind, and the trees.
"""

import netsum.plan

graph = netsum.plan.topology(netsum.plan.Selection("dgx1v", gpus=["0", "1", "2", "3", "4", "5"]))
best = netsum.plan.pack(graph, "allreduce")
rings = netsum.plan.pack(graph, "allreduce", method="rings")
print(f"trees: {best['rate']:.1f} GB/s, bound {best['bound']:.1f} GB/s, optimal: {best['optimal']}")
print(f"rings: {rings['rate']:.1f} GB/s")

plan = best["plan"]
for flow in plan["flows"]:
    edges = ", ".join("->".join(plan["vertices"][v] for v in way) for way in flow["up"])
    print(f"share {flow['share']:>5} to {plan['vertices'][flow['root']]}: {edges}")
