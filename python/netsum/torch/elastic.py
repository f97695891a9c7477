"""Who is in a group that shrinks and grows, agreed on through a store of torch.

    dist.init_process_group("netsum", store=store, rank=0, world_size=1, enable_reconfigure=True)
    members = Members(store)
    members.enter(3)                        # three to begin with; a later process enters at the next change
    spread(parameters)                      # from rank 0, the longest there
    while training:
        try:
            if members.wanted():            # somebody waits at the door
                members.change()
                spread(parameters)
            else:
                step()
        except netsum.NetsumError as error:
            members.change(error)           # without whom the error names
            spread(parameters)

The store must outlive ranks: torchrun's own, or a TCPStore of the launcher. Torch's contract leaves this agreement to
the caller; another one, such as torchft's quorum, can take its place.
"""

import json
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from netsum import NetsumError

SETTLE_S = 10.0
"""After a loss: how long those that live have to come, where not all that are expected do."""
_LOOK_S = 0.02


class Members:
    """The members of a group, generation by generation; ranks are by seniority.

    store: every process reaches it under the same keys. group: made with enable_reconfigure=True; the world if None.
    timeout_s: for an agreed generation to connect. settle_s: see `SETTLE_S`.
    """

    def __init__(
        self,
        store: dist.Store,
        group: dist.ProcessGroup | None = None,
        timeout_s: float = 60.0,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._store = dist.PrefixStore("netsum/members", store)
        self._group = group
        self._timeout_s = timeout_s
        self._settle_s = settle_s
        self._handle = dist._get_reconfigure_handle(group)
        self.generation = 0
        """Of the members now; 0 before the first."""
        self.handles: list[str] = []
        """Of the members by rank."""

    def enter(self, first: int) -> None:
        """Become a member: of the first generation, which begins with `first` processes, or of the next one to come.

        Blocks until then. Raises what `_reconfigure` raises.
        """
        current = self._store.add("generation", 0)
        if current == 0:
            if not self._agree(1, lambda came: len(came) >= first, self._timeout_s):
                raise NetsumError(f"netsum: {first} other processes have begun without this one; enter again")
            return
        until = time.monotonic() + self._timeout_s
        while True:
            self._store.add(f"{current}/waiting", 1)
            if self._agree(current + 1, None, until - time.monotonic()):
                return
            # It began without us: we asked too late, so we ask those who are in it now.
            current = max(self._store.add("generation", 0), current + 1)

    def wanted(self) -> bool:
        """Whether processes wait to become members. Collective: all members call it, and hear the same."""
        waiting = torch.zeros(1, dtype=torch.int32, device="cpu")
        if dist.get_rank(self._group) == 0:
            waiting += self._store.add(f"{self.generation}/waiting", 0)
        dist.broadcast(waiting, group_src=0, group=self._group)
        return bool(waiting.item())

    def change(self, error: BaseException | None = None) -> None:
        """Go on as the next generation: with those who wait, without whom `error` names (`PeerLost.rank`).

        All members that live call it. Where more are gone than was named, the others wait `settle_s` for them. Raises
        what `_reconfigure` raises; call it again then.
        """
        lost = getattr(error, "rank", None)
        expected = {handle for rank, handle in enumerate(self.handles) if rank != lost}
        waiting = self._store.add(f"{self.generation}/waiting", 0) if error is None else 0

        def all_there(came: set[str]) -> bool:
            return expected <= came and len(came) >= len(expected) + waiting

        following = self.generation + 1
        if not self._agree(following, all_there, self._timeout_s if error is None else self._settle_s):
            raise NetsumError(f"netsum: generation {following} began without this process, which came too late")

    def _agree(self, generation: int, enough: Callable[[set[str]], bool] | None, patience_s: float) -> bool:
        """Whether this process is in a generation: whoever sees enough come, or has waited long, closes it.

        enough: of those that came; None for a process that only waits to be taken in.
        """
        key = f"{generation}/"
        self._store.set(f"{key}handle/{self._store.add(key + 'came', 1)}", self._handle)
        until = time.monotonic() + patience_s
        while not self._store.check([key + "members"]):
            late = time.monotonic() > until
            if enough is None and late:
                raise NetsumError("netsum: the members have not taken this process in; do they call `wanted`?")
            if enough is not None and (late or enough(set(self._came(generation)))):
                self._close(generation)
                break
            time.sleep(_LOOK_S)
        members = json.loads(self._store.get(key + "members"))
        if self._handle not in members:
            return False
        self.generation, self.handles = generation, members
        timeout = timedelta(seconds=self._timeout_s)
        dist._reconfigure(generation, members, group=self._group, timeout=timeout).wait()
        return True

    def _came(self, generation: int) -> list[str]:
        """Handles in the order in which they came."""
        key = f"{generation}/"
        numbers = range(1, self._store.add(key + "came", 0) + 1)
        return [self._store.get(f"{key}handle/{number}").decode() for number in numbers]

    def _close(self, generation: int) -> None:
        """Propose who came as the generation's members, the longest there first; the first proposal stands."""
        key = f"{generation}/"
        place = {handle: rank for rank, handle in enumerate(self.handles)}
        ordered = sorted(dict.fromkeys(self._came(generation)), key=lambda handle: place.get(handle, len(place)))
        if self._store.add(key + "closed", 1) == 1:
            self._store.set(key + "members", json.dumps(ordered))
            self._store.add("generation", 1)
        else:
            self._store.wait([key + "members"], timedelta(seconds=self._timeout_s))
