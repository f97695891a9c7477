"""netsum below torchft, which makes a new group for every quorum: `Manager(pg=ProcessGroupNetsum(), …)`."""

from datetime import timedelta

import torch.distributed as dist
from torchft.process_group import ProcessGroupWrapper

from netsum.torch.create import group_over


class ProcessGroupNetsum(ProcessGroupWrapper):
    """torchft's process group on netsum. timeout: of meetings, and default for operations."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        super().__init__(timeout)

    def _create_pg(self, store: dist.Store, rank: int, world_size: int) -> dist.ProcessGroup:
        return group_over(store, rank, world_size, self._timeout, f"torchft/{self._quorum_id}")

    def getBackendName(self) -> str:
        return "torchft-netsum"
