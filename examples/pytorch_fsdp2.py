"""FSDP2: parameters sharded over the ranks, gathered for each layer, gradients reduce-scattered.

    netsum run -n 2 examples/pytorch_fsdp2.py

You see the share of the parameters that each rank holds, and the loss fall.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("netsum")
rank, size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (size,))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1))
total = sum(p.numel() for p in model.parameters())
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
held = sum(p.to_local().numel() for p in model.parameters())
print(f"rank {rank} holds {held} of {total} parameters")

optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
torch.manual_seed(100 + rank)
losses = []
for _ in range(20):
    x = torch.randn(64, 64)
    loss = nn.functional.mse_loss(model(x), x.mean(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

if rank == 0:
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
dist.destroy_process_group()
