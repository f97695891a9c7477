"""What the demo can train: the facts about it that tables and reports show. The trainings are in `digits` and
`characters`, which load torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """A training of the demo.

    name: for `train.py`. epochs: by default; with kills. samples: what throughput counts. score: key in `result.json`
    of the quality on test data, `score_name` in tables. limit: it must be above, or below if `less_is_better`.
    collectives: which ones switches do, as NETSUM_COLLECTIVES.
    """

    name: str
    epochs: tuple[int, int]
    title: str
    data: str
    method: str
    samples: str
    score: str
    score_name: str
    limit: float
    less_is_better: bool
    collectives: str

    def good(self, score: float) -> bool:
        return score < self.limit if self.less_is_better else score > self.limit

    def words(self, score: float) -> str:
        """A score as people read it."""
        return f"{score:.3f}" if self.less_is_better else f"{score:.2%}"


DIGITS = Workload(
    name="digits",
    epochs=(12, 20),
    title="LeNet-5",
    data="scikit-learn's handwritten digits",
    method="DistributedDataParallel",
    samples="images",
    score="accuracy",
    score_name="accuracy",
    limit=0.95,
    less_is_better=False,
    collectives="allreduce",
)

CHARACTERS = Workload(
    name="characters",
    epochs=(8, 12),
    title="A small GPT",
    data="the characters of Python's own manual",
    method="FSDP2 (fully_shard) with overlap",
    samples="characters",
    score="held_out_loss",
    score_name="loss on held-out text",
    limit=2.5,
    less_is_better=True,
    collectives="all",
)

WORKLOADS = {workload.name: workload for workload in (DIGITS, CHARACTERS)}
