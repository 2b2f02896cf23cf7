"""Slurm's hostlists: `n[01-03,20]` to names and back, keeping Slurm's order. Pure.

    hostlist = part *("," part)         part = text with any number of [ranges], suffix allowed
    ranges   = range *("," range)       range = number | low "-" high, as wide as `low` is written

Why not ClusterShell: docs/adr/0002-hostlists.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product
from math import prod

MAX_NAMES = 65_536  # Slurm's own limit of a range

_PART = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_HOSTLIST = re.compile(rf"[,\s]*(?:{_PART.pattern}(?:[,\s]+|$))*")
_PIECE = re.compile(r"\[([^\]]*)\]|([^\[]+)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NAME = re.compile(r"([^\[\],\s]*?)(\d{0,9})", re.ASCII)


class BadHostlist(ValueError):  # noqa: N818 - reads as what it is
    """The text is no hostlist, or one of more than MAX_NAMES names."""


def expand(text: str) -> tuple[str, ...]:
    """The names of a hostlist in its order; raises BadHostlist."""
    if not _HOSTLIST.fullmatch(text):
        raise BadHostlist(f"not a hostlist: {text[:80]!r}")
    names: list[str] = []
    for part in _PART.findall(text):
        choices = [_choices(*piece.groups()) for piece in _PIECE.finditer(part)]
        _check_count(len(names) + prod(map(len, choices)))
        names.extend(map("".join, product(*choices)))
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """A hostlist that expands to `names`, in that order; consecutive numbers become ranges.

    Only the last number of a name is folded: Slurm 22.05 reads no text after a bracket.
    """
    groups = groupby(map(_split, names), key=lambda part: (part[0], part[1] != ""))
    return ",".join(
        _written(prefix, [number for _, number in group]) for (prefix, _), group in groups
    )


def _choices(ranges: str | None, plain: str | None) -> list[str]:
    if plain is not None:
        return [plain]
    numbers: list[str] = []
    for part in (ranges or "").split(","):
        low, high = _bounds(part)
        _check_count(len(numbers) + int(high) - int(low) + 1)
        numbers.extend(str(n).zfill(len(low)) for n in range(int(low), int(high) + 1))
    return numbers


def _bounds(text: str) -> tuple[str, str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise BadHostlist(f"not a range: {text[:80]!r}")
    low, high = match[1], match[2] or match[1]
    if int(low) > int(high):
        raise BadHostlist(f"not a range: {text!r} runs backwards")
    return low, high


def _check_count(count: int) -> None:
    if count > MAX_NAMES:
        raise BadHostlist(f"a hostlist of more than {MAX_NAMES} names")


def _split(name: str) -> tuple[str, str]:
    match = _NAME.fullmatch(name)
    if match is None or not name:
        raise BadHostlist(f"not a node name: {name[:80]!r}")
    return match[1], match[2]


def _written(prefix: str, numbers: list[str]) -> str:
    if numbers[0] == "":
        return ",".join(prefix for _ in numbers)
    ranges = list(_ranges(numbers))
    if len(numbers) == 1:
        return prefix + numbers[0]
    return f"{prefix}[{','.join(low if low == high else f'{low}-{high}' for low, high in ranges)}]"


def _ranges(numbers: list[str]) -> Iterator[tuple[str, str]]:
    low = high = numbers[0]
    for number in numbers[1:]:
        if number == str(int(high) + 1).zfill(len(low)):
            high = number
            continue
        yield low, high
        low = high = number
    yield low, high
