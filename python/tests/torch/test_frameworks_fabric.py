"""Libraries above `netsum.communicator` use the network if available: switches of a local fabric aggregate."""

import numpy as np
import torch
from processes import run_ranks

from netsum.communicator import connect


def test_arrays_and_horovods_operations_are_added_by_switches(fabric):
    def arrays(rank: int):
        with connect(timeout_s=30.0) as world:
            values = np.arange(100_000, dtype=np.float32) + rank
            world.allreduce(values)
            assert (values == 4 * np.arange(100_000) + 6).all()
            halves = world.split([0, 1] if rank < 2 else [2, 3])
            assert halves.allreduce(np.ones(50_000)).sum() == 100_000
            assert halves.stats()["path"] == "host"
            halves.close()
            stats = world.stats()
            return stats["path"], stats["network_operations"]

    def horovod(rank: int):
        import netsum.horovod.torch as hvd
        from netsum.horovod.basics import runtime

        hvd.init()
        handles = [hvd.allreduce_async(torch.full((30_000,), rank + 1.0), name=f"t{i}") for i in range(8)]
        assert all((hvd.synchronize(handle) == 2.5).all() for handle in handles)
        stats = runtime().world.stats()
        hvd.barrier()
        hvd.shutdown()
        return stats["path"], stats["network_operations"] > 0

    environment = fabric.environment()
    assert run_ranks(arrays, 4, **environment) == [("trees", 1)] * 4
    assert run_ranks(horovod, 4, **environment) == [("trees", True)] * 4
