"""Whether decisions are carried out: of the whole cluster, or of one run."""

from __future__ import annotations

from unicrond.model.strenum import StrEnum


class Mode(StrEnum):
    OBSERVE = "observe"  # decide and record, do not act
    ACTIVE = "active"
    PAUSED = "paused"
