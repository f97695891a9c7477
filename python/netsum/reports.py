"""Types of the JSON reports of groups and controllers: `netsum.Group.stats`, `.explain`, `.recorded` and
`netsum.status`.
"""

from typing import Literal, TypedDict

HostsBy = Literal[
    "shared memory",
    "shared memory within hosts, TCP between them",
    "shared memory within hosts, UCX between them",
    "TCP",
    "UCX",
]


class Pause(TypedDict):
    """A period in which nothing could be summed on trees."""

    what: str
    at_unix_s: float
    seconds: float


class PlanView(TypedDict):
    """The tree plan between hosts in use."""

    epoch: int
    trees: int
    rate_gbytes: float
    from_bytes: int
    """Smaller buffers use the hosts' algorithms."""


class MeasuredLink(TypedDict):
    """A link of a tree plan as measured at the start."""

    link: list[str]
    latency_s: float
    rate_bps: float


class TreeView(TypedDict):
    """One aggregation tree in this rank's view."""

    tree: int
    switch: str
    window: int
    rtt_us: float
    results: int
    retransmits: int
    spurious_retransmits: int
    """Of them, those that were not needed: nothing had been lost."""
    marks: int
    bytes_tx: int
    bytes_rx: int
    waiting_for: int
    """Bits of the ranks (mod 64) that the tree last reported as missing."""


class Across(TypedDict):
    """Costs between hosts, if some hosts have several ranks that share memory."""

    hosts: list[list[int]]
    latency_s: float
    bytes_per_s: float


class Link(TypedDict):
    """The cost model's parameters; equal at all ranks."""

    ranks: int
    shared_memory: bool
    latency_s: float
    bytes_per_s: float
    by_distance: list[float]
    """By bit, bytes per second while each rank exchanges with the one whose number differs in it; or empty."""
    across: Across | None


class OperationCost(TypedDict):
    """Times of one operation, each from the call to its end at the slowest rank: pairs of bytes and seconds."""

    switches: list[tuple[int, float]]
    hosts: list[tuple[int, float]]


SwitchCost = dict[str, OperationCost]
"""Costs by operation, as measured when the group connected; equal at all ranks."""


class GroupStats(TypedDict):
    """Counters and state of a group."""

    job: int | None
    epoch: int
    path: Literal["trees", "plan", "host"]
    protocol: str
    choice: str
    plan: PlanView | None
    links: list[MeasuredLink]
    reason: str
    """Why some or all sums do not use trees; empty if all do."""
    trees: list[TreeView]
    pauses: list[Pause]
    hosts_by: HostsBy
    link: Link
    switches: SwitchCost | None
    """None if a threshold decides what switches do."""
    host_bytes_tx: int
    host_bytes_rx: int
    host_strangers: int
    operations: int
    network_operations: int
    served: int
    redone: int


class Cost(TypedDict):
    """The cost model's estimate for an algorithm; `seconds` None: not applicable to the operation."""

    name: str
    seconds: float | None


class Choice(TypedDict):
    """The algorithm chosen for an operation of one size."""

    chosen: str
    why: str
    costs: list[Cost]


class _RecordedCall(TypedDict):
    number: int | None
    call: str
    called_unix_s: float
    seconds: float | None
    error: str | None


class RecordedOperation(_RecordedCall, total=False):
    """One call. `number`: its position among the group's collectives; None for messages, which lack the other two."""

    dtype: str | None
    bytes: int


class Recorded(TypedDict):
    """A group and its last operations, oldest first."""

    format: int
    group: str
    rank: int
    size: int
    place: str
    why: str
    failure: str | None
    written_unix_s: float
    operations: list[RecordedOperation]


class FabricHost(TypedDict):
    """A host of the fabric file."""

    name: str
    address: str


class ChildLateness(TypedDict):
    """How late a child's fragments are, against the first of each fragment, since the lease was installed.

    `histogram`: fragments by lateness, below 1,024 ns, below 4,096 ns and so on. `awaited_ns`: for how long others had
    to wait for the child; `opening_ns`: the part of it before the child's first packet of each of `bursts`.
    """

    address: str
    name: str
    histogram: list[int]
    late_ns: int
    last: int
    awaited_ns: int
    bursts: int
    opening_ns: int


class Straggler(TypedDict):
    """A child of a job's tree for which the others wait, between two statuses of a controller.

    `slow`: "rank": it begins late. "link": what it sends comes slowly. "rack": all ranks below a switch begin late.
    `share`: of the time during which the others had to wait for it alone.
    """

    job: int
    tree: int
    slow: Literal["rank", "link", "rack"]
    child: str
    at: str
    share: float


class SwitchTree(TypedDict):
    """One lease, with the counters of a switch or server."""

    job: int
    tree: int
    epoch: int
    contributions: int
    results: int
    retransmits_answered: int
    marks: int
    memory_used_bytes: int
    drops: dict[str, int]
    protocol: str
    slots_held: int
    passed: int
    collisions: int
    expired: int
    preempted: int
    float_requests: int
    packets: int
    duplicates: int
    rehashes: int
    children: list[ChildLateness]


class SwitchTenant(TypedDict):
    """What a tenant has sent to a switch: packets that passed, those of them that were marked, and those dropped."""

    tenant: str
    packets: int
    bytes: int
    marked: int
    dropped: int


class NeighbourStatus(TypedDict):
    """Bytes that a switch has exchanged with one address; `name` empty: unknown."""

    name: str
    address: str
    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int


class SwitchStatus(TypedDict):
    """A switch or server in the controller's view."""

    name: str
    address: str
    state: Literal["up", "down", "expected"]
    state_for_s: float
    memory_bytes: int
    memory_used_bytes: int
    memory_leased_bytes: int
    memory_reserved_bytes: int
    receive_buffer_bytes: int
    mtu: int
    trees: list[SwitchTree]
    drops: dict[str, int]
    neighbours: list[NeighbourStatus]
    role: Literal["switch", "server"]
    host: str
    slots: int
    slots_held: int
    policy: str
    rows_used: int
    tenants: list[SwitchTenant]
    stale_messages: int


class LinkStatus(TypedDict):
    """Bytes of aggregation traffic over a link."""

    a: str
    b: str
    rate_bps: int
    bytes_ab: int
    bytes_ba: int
    up: bool


class Branch(TypedDict, total=False):
    """The member below an edge of a tree: exactly one of the two."""

    Rank: int
    Switch: str


class TreeChild(TypedDict):
    """An edge of a tree; `branch`: its bit in the marks."""

    child: Branch
    branch: int


class TreeNode(TypedDict):
    """A switch of a tree, or the server at its root."""

    switch: str
    address: str
    children: list[TreeChild]
    parent: str
    via: list[str]


class Tree(TypedDict):
    """An aggregation tree: the root first, every other node after its parent."""

    tree: int
    root: str
    nodes: list[TreeNode]


class WorkerTree(TypedDict):
    """One tree as reported by a rank."""

    tree: int
    window: int
    rtt_ns: int
    results: int
    retransmits: int
    spurious_retransmits: int
    """Of them, those that were not needed: nothing had been lost."""
    marks: int
    bytes_tx: int
    bytes_rx: int


class StepReport(TypedDict):
    """A rank's training step: medians of the last steps, found by the calls that repeat."""

    seconds: float
    communicating_s: float
    """Of it, with a collective in progress."""
    exposed_s: float
    """Of this, after the last call of collectives that overlap."""
    operations: int
    bytes: int


class RecentOperation(TypedDict):
    """One of a rank's last collectives; `seconds` None: in progress."""

    number: int
    call: str
    bytes: int
    called_unix_s: float
    seconds: float | None


class RankOperations(TypedDict):
    """A rank's last collectives, oldest first: `netsum.job_operations`."""

    rank: int
    operations: list[RecentOperation]


class TrainingStep(TypedDict):
    """One training step of a rank: `_core.training_steps`."""

    began_s: float
    seconds: float
    communicating_s: float
    exposed_s: float
    operations: int
    bytes: int


class WorkerStatistics(TypedDict):
    """A rank's last report."""

    trees: list[WorkerTree]
    host_bytes_tx: int
    host_bytes_rx: int
    operations: int
    network_operations: int
    pauses: list[Pause]
    plan_epoch: int
    silent_trees: list[int]
    unreachable_ranks: list[int]
    stale_messages: int
    step: StepReport | None
    recent: list[RecentOperation]
    """Always empty: `netsum.job_operations` has them."""


class RankStatus(TypedDict):
    """A rank of a job in the controller's view."""

    rank: int
    host: str
    pid: int
    state: Literal["awaited", "connected", "away", "left", "lost"]
    udp_address: str
    statistics: WorkerStatistics | None


JOB_OVER = ("ended", "abandoned")
"""States of jobs that have no ranks any more."""


class JobStatus(TypedDict):
    """A job; `epoch` 0: it has no plan yet."""

    job: int
    name: str
    size: int
    state: Literal["joining", "planning", "running", "ended", "abandoned"]
    epoch: int
    order: str
    trees: list[Tree]
    reason: str
    window_max: int
    fragment_bytes: int
    ranks: list[RankStatus]
    created_unix_s: float
    protocol: str
    choice: str
    tenant: str
    tags: bool
    encrypted: bool


class StoreStatus(TypedDict):
    """Where a controller stores its jobs, and whether it can write there."""

    place: str
    problem: str
    failing_for_s: float
    failures: int
    deferred_events: int


class ControllerStatus(TypedDict):
    """A controller's status."""

    fabric: str
    address: str
    version: str
    uptime_s: float
    hosts: list[FabricHost]
    switches: list[SwitchStatus]
    links: list[LinkStatus]
    jobs: list[JobStatus]
    incarnation: int
    store: StoreStatus | None
    term: int
