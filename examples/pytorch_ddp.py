"""DistributedDataParallel on gradients that switches add.

    netsum run -n 4 examples/pytorch_ddp.py

You see the loss fall, and that all ranks end with the same parameters to the bit.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("netsum")
rank = dist.get_rank()

torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

torch.manual_seed(1)
weights = torch.randn(64, 1)
torch.manual_seed(100 + rank)  # every rank draws its own samples
for step in range(20):
    x = torch.randn(128, 64)
    loss = nn.functional.mse_loss(model(x), x @ weights / 8)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach(), op=dist.ReduceOp.AVG)
    if rank == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {loss.item():.4f}")

digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
digests = [None] * dist.get_world_size()
dist.all_gather_object(digests, digest)
if rank == 0:
    print("identical parameters:", len(set(digests)) == 1)
dist.destroy_process_group()
