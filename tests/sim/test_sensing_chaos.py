"""Seeded faults of hardware among all others: the same truths hold."""

from __future__ import annotations

import random

import pytest
import test_chaos
from world import World

from detectors.verdict import Kind
from unicrond.model.events import SignalArrived
from unicrond.model.incident import Signal, SignalKind

KINDS = (Kind.ECC, Kind.GPU_LOST, Kind.PORT_DOWN, Kind.HANG, Kind.HOST_OOM, Kind.ILLEGAL_ACCESS)
OTHERS = test_chaos.fault


def fault(world: World, dice: random.Random) -> None:
    """One in two is of hardware; agents may say it of any node, as a liar would."""
    if dice.random() < 0.5:
        OTHERS(world, dice)
        return
    told = Signal(
        world.clock.at,
        SignalKind.HARDWARE,
        dice.choice([None, None, *world.wishes]),
        f"n{dice.randint(1, 8)}",
        text="a sensor saw it",
        data={"kind": dice.choice(KINDS), "severity": dice.choice(["SEV1", "SEV1", "SEV2"])},
    )
    for _ in range(dice.choice([1, 1, 3])):
        world.tell(SignalArrived(told))


def test_whatever_happens_every_incident_ends_and_no_run_is_stuck(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_chaos, "fault", fault)
    test_chaos.test_whatever_happens_every_incident_ends_and_no_run_is_stuck(seed)
