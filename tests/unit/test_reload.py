"""A configuration that is read anew while unicrond runs."""

from __future__ import annotations

from unicrond.config import Settings
from unicrond.core.policy import Policy
from unicrond.core.state import from_saved
from unicrond.core.step import Core
from unicrond.model.decision import Mode
from unicrond.model.events import PolicySet
from unicrond.ports import Saved
from unicrond.reload import AT_ONCE, NEVER, OF_OTHER_PROCESSES, Difference, difference


def read(**changes: object) -> Difference:
    return difference(Settings(), Settings.model_validate(changes))


def test_numbers_of_decisions_hold_at_once_and_are_told() -> None:
    found = read(policy={"drains_per_hour": 9, "silence_seconds": 2.5})
    assert found.policy == {"drains_per_hour": 9, "silence_seconds": 2.5}
    assert not found.starts_processes
    assert str(found) == "policy.silence_seconds = 2.5, policy.drains_per_hour = 9"


def test_what_other_processes_read_starts_them_anew() -> None:
    assert read(admins=["alice"]).starts_processes
    assert read(accounts={"ml": {"floor_nodes": 2}}).starts_processes


def test_what_needs_a_restart_is_named() -> None:
    found = read(agent_listen="0.0.0.0:7799", log_level="debug")
    assert str(found) == "log_level; after a restart of unicrond: agent_listen"


def test_the_mode_is_never_taken_from_a_file_that_is_read_again() -> None:
    assert str(read(mode="active")) == "nothing changed"


def test_every_kind_of_key_is_a_key() -> None:
    assert set(Settings.model_fields) >= AT_ONCE | NEVER | OF_OTHER_PROCESSES


def test_the_core_goes_on_with_the_new_numbers_and_its_mode() -> None:
    core = Core(from_saved(Saved(mode=Mode.PAUSED), Policy(), 0.0))
    changes = core.step(1.0, [PolicySet(1.0, {"drains_per_hour": 9})])
    assert (core.state.policy.drains_per_hour, core.state.mode) == (9, Mode.PAUSED)
    [line] = changes.journal
    assert line.text == "the configuration was read anew: drains_per_hour = 9"
