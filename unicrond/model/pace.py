"""How fast one rank was over a few iterations."""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    window: int  # which iterations, counted from the generation's start (detectors/pace.py)
    seconds: float  # of one iteration
    own_seconds: float | None  # of these without waiting for peers; None: not known
