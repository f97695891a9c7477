"""A script for Horovod: only the import differs (`import horovod.torch as hvd` before).

    netsum run --plain -n 2 examples/horovod_script.py

You see the loss fall; gradients are matched by name, in any order.
"""

import torch
from torch import nn

import netsum.horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())  # the ranks begin with different parameters; rank 0's are broadcast
model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for step in range(20):
    x = torch.randn(64, 32)
    loss = nn.functional.mse_loss(model(x), x.mean(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    mean = hvd.allreduce(loss.detach(), name="loss")
    if hvd.rank() == 0 and step % 5 == 4:
        print(f"step {step + 1}: loss {mean.item():.4f}")
hvd.shutdown()
