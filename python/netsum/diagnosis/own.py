"""The diagnosis of this process's own groups, and the one that errors of time-outs carry."""

import json
import threading
import time
from typing import Any

from netsum.diagnosis.asking import WhyError, of_own_group
from netsum.diagnosis.evidence import Case
from netsum.diagnosis.verdict import Verdict, judge
from netsum.diagnosis.words import lines
from netsum.recorder.writing import groups

ANEW_S = 10.0
"""Operations of one group that time out together share a diagnosis."""
_asking = threading.Lock()
_last: tuple[str, float, str] = ("", 0.0, "")


def verdict() -> Verdict:
    """The verdict on the largest group of this process. Raises WhyError if it is in none."""
    return judge(_case())


def _case() -> Case:
    known = [(json.loads(core.recorded()), core) for core in groups()]
    open_ = [(recorded["size"], core) for recorded, core in known if recorded]
    if not open_:
        raise WhyError("this process is in no group")
    return of_own_group(max(open_, key=lambda each: each[0])[1])


def extended(text: str) -> str:
    """The text of a time-out with a diagnosis, if the ranks can be asked; the core calls it for each such error."""
    global _last
    with _asking:
        for core in groups():
            recorded = json.loads(core.recorded())
            if not recorded or not _is_of(text, recorded):
                continue
            name, at, words = _last
            if name != recorded["group"] or time.monotonic() - at > ANEW_S:
                case = of_own_group(core)
                words = "\n  ".join(lines(case, judge(case)))
                _last = (recorded["group"], time.monotonic(), words)
            return f"{text}\n  {words}"
    return text


def _is_of(text: str, recorded: dict[str, Any]) -> bool:
    """Whether the text is about an operation of a group."""
    return any(
        text.startswith(f"{operation['call']} (operation #{operation['number']},")
        for operation in recorded["operations"]
        if operation["number"] is not None
    )
