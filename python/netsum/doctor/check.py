"""The result of one check."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Check:
    """name: of the check. found: the observation, with units. advice: what to do; empty if nothing."""

    name: str
    verdict: Verdict
    found: str
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, found: str) -> Check:
    return Check(name, Verdict.OK, found)


def warn(name: str, found: str, advice: str) -> Check:
    return Check(name, Verdict.WARN, found, advice)


def fail(name: str, found: str, advice: str) -> Check:
    return Check(name, Verdict.FAIL, found, advice)
