"""Slurm's lists of names: `n[0-3,7],gpu[00-03]` and the like."""

import itertools
import re

from netsum.fabric.errors import FabricError

NAMES_MAX = 65_536
"""Most names of one list: more is a slip of the pen."""
_PIECES = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> list[str]:
    """The names of a list, in its order. Raises FabricError, which quotes what it does not understand."""
    names: list[str] = []
    for word in _words(text):
        names += _expand_word(word)
        if len(names) > NAMES_MAX:
            raise FabricError(f"the list of names '{text[:80]}' has more than {NAMES_MAX}")
    return names


def _words(text: str) -> list[str]:
    """Cut at commas that are not within brackets."""
    words, depth, begin = [], 0, 0
    for place, sign in enumerate(text):
        if sign == "[":
            depth += 1
        elif sign == "]":
            depth -= 1
        elif sign == "," and depth == 0:
            words.append(text[begin:place])
            begin = place + 1
        if depth not in (0, 1):
            raise FabricError(f"the list of names '{text}' has brackets that do not match")
    if depth:
        raise FabricError(f"the list of names '{text}' has brackets that do not match")
    return [word.strip() for word in [*words, text[begin:]] if word.strip()]


def _expand_word(word: str) -> list[str]:
    """`r[0-1]n[0-3]`: every combination, the last bracket fastest."""
    choices: list[list[str]] = []
    place = 0
    while place < len(word):
        piece = _PIECES.match(word, place)
        if piece is None or piece.end() == place:
            raise FabricError(f"'{word}' is not a list of names such as n[0-3,7]")
        choices.append([piece[1]])
        if piece[2] is not None:
            choices.append(_numbers(piece[2], word))
        place = piece.end()
    count = 1
    for each in choices:
        count *= len(each)
    if count > NAMES_MAX:
        raise FabricError(f"'{word}' has more than {NAMES_MAX} names")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(text: str, word: str) -> list[str]:
    """`0-3,07`: numbers keep the width in which they are written."""
    numbers: list[str] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        if found is None:
            raise FabricError(f"'{word}': [{text}] is not a list of numbers such as [0-3,7]")
        first, last = found[1], found[2] or found[1]
        if int(last) < int(first) or int(last) - int(first) >= NAMES_MAX:
            raise FabricError(f"'{word}': {part} is not a range of at most {NAMES_MAX} numbers")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return numbers
