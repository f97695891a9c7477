"""One rank of a timed training: `train.py LIBRARY MODEL BATCHES STEPS STORE OUT`.

LIBRARY: gloo, netsum, or openmpi. Gradients are summed by DistributedDataParallel; torch's wheel has no MPI backend, so
with openmpi a DDP hook passes every bucket to MPI_Allreduce, and DDP's own group uses Gloo. For each of BATCHES
(comma-separated images per rank) rank 0 writes the seconds of STEPS steps of the slowest rank, and the last loss, to
OUT.
"""

import atexit
import ctypes
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from netsum.communicator import Place
from netsum.demo.model import digits, lenet5

SEED = 20
WARMUP = 2


class Block(nn.Module):
    """Two 3 × 3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()),
            *(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)),
        )
        plain = stride == 1 and inputs == outputs
        past = (nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.past = nn.Identity() if plain else nn.Sequential(*past)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.past(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 32 × 32 colour images and ten classes: 11.2 million parameters."""
    blocks, width = [], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), *blocks),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)),
    )


def data(model: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits enlarged to 32 × 32; for ResNet-18 noise of CIFAR-10's shape, which takes the same time as pictures."""
    if model == "lenet5":
        images, labels, _, _ = digits(SEED)
        return images, labels
    draw = torch.Generator().manual_seed(SEED)
    return torch.randn(2048, 3, 32, 32, generator=draw), torch.randint(0, 10, (2048,), generator=draw)


def by_open_mpi(size: int) -> Callable:
    """A hook of DDP: every bucket's mean by MPI_Allreduce, in place, without mpi4py."""
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    mpi.MPI_Init(None, None)
    # Without it mpirun treats a normal exit as a failure.
    atexit.register(mpi.MPI_Finalize)
    world, real, add = (
        ctypes.byref(ctypes.c_char.in_dll(mpi, name))
        for name in ("ompi_mpi_comm_world", "ompi_mpi_float", "ompi_mpi_op_sum")
    )
    in_place = ctypes.c_void_p(1)

    def hook(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        code = mpi.MPI_Allreduce(in_place, ctypes.c_void_p(buffer.data_ptr()), buffer.numel(), real, add, world)
        if code:
            raise RuntimeError(f"MPI_Allreduce ended with {code}")
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(buffer.div_(size))
        return future

    return hook


def main() -> None:
    library, model_name, batches, steps, store, out = sys.argv[1:7]
    torch.set_num_threads(1)
    place = Place.from_environment()
    backend = "netsum" if library == "netsum" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=place.rank, world_size=place.size)
    images, labels = data(model_name)
    hook = by_open_mpi(place.size) if library == "openmpi" else None
    found = {}
    for batch in map(int, batches.split(",")):
        torch.manual_seed(SEED)
        model = DistributedDataParallel(lenet5() if model_name == "lenet5" else resnet18())
        if hook is not None:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        draw = torch.Generator().manual_seed(SEED + place.rank)
        times = []
        for _ in range(WARMUP + int(steps)):
            chosen = torch.randint(len(labels), (batch,), generator=draw)
            dist.barrier()
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            times.append(time.perf_counter() - start)
        slowest = torch.tensor(times[WARMUP:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        found[batch] = {"seconds": slowest.tolist(), "loss": loss.item()}
    if place.rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
