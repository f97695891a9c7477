"""Membership of a group that shrinks and grows, agreed on through a torch store.

    dist.init_process_group("netsum", store=store, rank=0, world_size=1, enable_reconfigure=True)
    members = Members(store)
    members.enter(3)                        # three to begin with; a later process enters at the next change
    spread(parameters)                      # from rank 0, the longest there
    while training:
        try:
            if members.wanted():            # another process waits to join
                members.change()
                spread(parameters)
            else:
                step()
        except netsum.NetsumError as error:
            members.change(error)           # without whom the error names
            spread(parameters)

The store must outlive ranks: torchrun's own, or a TCPStore of the launcher. Torch's contract leaves this agreement to
the caller; another implementation, such as torchft's quorum, can replace it.
"""

import json
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from netsum import NetsumError

SETTLE_S = 10.0
"""After a loss: how long the remaining members wait for expected members that do not join."""
_LOOK_S = 0.02


class Members:
    """The members of a group, generation by generation; ranks are by seniority.

    store: every process reaches it under the same keys. group: created with enable_reconfigure=True; the world if None.
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
        """Current generation; 0 before the first."""
        self.handles: list[str] = []
        """Handles of the current members by rank."""

    def enter(self, first: int) -> None:
        """Become a member: of the first generation, which begins with `first` processes, or of the next one.

        Blocks until then. Raises the errors of `_reconfigure`.
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
            # The generation began without this process: the request was too late, so it asks its members.
            current = max(self._store.add("generation", 0), current + 1)

    def wanted(self) -> bool:
        """Whether processes wait to become members. Collective: all members call it, and get the same result."""
        waiting = torch.zeros(1, dtype=torch.int32, device="cpu")
        if dist.get_rank(self._group) == 0:
            waiting += self._store.add(f"{self.generation}/waiting", 0)
        dist.broadcast(waiting, group_src=0, group=self._group)
        return bool(waiting.item())

    def change(self, error: BaseException | None = None) -> None:
        """Form the next generation: with the waiting processes, without the rank that `error` names (`PeerLost.rank`).

        All remaining members call it. If more members are lost than named, the others wait `settle_s` for them. Raises
        the errors of `_reconfigure`; call it again then.
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
        """Whether this process is in the generation: a process that sees enough candidates, or has waited long, closes
        it.

        enough: predicate on the candidates; None for a process that only waits to be admitted.
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
        """Handles of the candidates in order of arrival."""
        key = f"{generation}/"
        numbers = range(1, self._store.add(key + "came", 0) + 1)
        return [self._store.get(f"{key}handle/{number}").decode() for number in numbers]

    def _close(self, generation: int) -> None:
        """Propose the candidates as the generation's members, by seniority; the first proposal is final."""
        key = f"{generation}/"
        place = {handle: rank for rank, handle in enumerate(self.handles)}
        ordered = sorted(dict.fromkeys(self._came(generation)), key=lambda handle: place.get(handle, len(place)))
        if self._store.add(key + "closed", 1) == 1:
            self._store.set(key + "members", json.dumps(ordered))
            self._store.add("generation", 1)
        else:
            self._store.wait([key + "members"], timedelta(seconds=self._timeout_s))
