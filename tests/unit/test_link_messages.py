"""What agents say becomes events; what is off is named."""

from __future__ import annotations

import pytest
from linkworld import registration, state

from unicrond.errors import ProtocolError
from unicrond.link import messages
from unicrond.link.frames import FRAME_LIMIT_BYTES, decode_body, encode_body
from unicrond.link.handshake import Claim, Identity
from unicrond.model.decision import Action, ActionKey, ActionKind, OutcomeState
from unicrond.model.incident import SignalKind
from unicrond.model.run import Assignment, Phase, Slot

ME = Identity(7, "n1", "a1")
CLAIM = Claim(ME, 1000)
NAMES = {"run_id": 7, "node": "n1", "agent": "a1"}
ASSIGNMENT = Assignment(2, "o-1", (Slot(0, "m0", "n1", 0), Slot(1, "m1", "n2", 0)))


def test_a_registration_keeps_all_that_was_said() -> None:
    wire = messages.assignment_to(ASSIGNMENT)
    made = messages.registration(registration(assignment=wire, phase="running") | NAMES, CLAIM)
    assert (made.run_id, made.node, made.agent, made.uid) == (7, "n1", "a1", 1000)
    assert made.nodes == ("n1", "n2") and made.phase is Phase.RUNNING
    assert made.assignment == ASSIGNMENT


def test_an_agent_cannot_register_under_another_name() -> None:
    for other in ({"run_id": 8}, {"node": "n2"}, {"agent": "a2"}):
        with pytest.raises(ProtocolError, match="was proved"):
            messages.registration(registration() | NAMES | other, CLAIM)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", -1),
        ("weight", "1"),
        ("weight", True),
        ("min_nodes", 0),
        ("min_nodes", 1.5),
        ("max_nodes", 10**9),
        ("ranks_per_node", None),
        ("nodes", []),
        ("nodes", ["n1", 2]),
        ("nodes", ["n1; rm -rf /"]),
        ("nodes", "n1"),
        ("restarts", -1),
        ("phase", "asleep"),
        ("phase", ["idle"]),
        ("generation", 2**60),
        ("stopped_generation", -2),
        ("assignment", []),
        ("assignment", {"generation": 1, "order": "o", "slots": [[0, "m", "n1"]]}),
        ("assignment", {"generation": 1, "order": "o", "slots": [{}]}),
        ("assignment", {"generation": 1, "order": 3, "slots": []}),
        ("name", "x" * 257),
    ],
)
def test_a_field_out_of_bounds_is_refused(field: str, value: object) -> None:
    with pytest.raises(ProtocolError):
        messages.registration(registration(**{field: value}) | NAMES, CLAIM)


def test_ages_of_peers_become_times_on_unicronds_clock() -> None:
    beat = messages.beat(state(peers={"n2": 1.5}, iteration=12, beat=1), ME, now=100.0)
    assert beat.peers_heard == {"n2": 98.5}
    assert (beat.at, beat.iteration, beat.assignment) == (100.0, 12, None)


@pytest.mark.parametrize("peers", [{"n2": -1}, {"n2": "1"}, {"n2": None}, [], {"n2": True}])
def test_an_odd_age_is_refused(peers: object) -> None:
    with pytest.raises(ProtocolError, match="peers"):
        messages.beat(state(peers=peers), ME, now=100.0)


def test_a_signal_is_about_the_agents_own_node_whatever_it_says() -> None:
    body = {"kind": "rank_exited", "age": 2.0, "generation": 3, "rank": 1, "member": "m1"}
    signal = messages.signal(body | {"node": "n2", "data": {"exit_code": 1}}, ME, now=100.0)
    assert signal is not None
    assert (signal.node, signal.run_id, signal.at) == ("n1", 7, 98.0)
    assert signal.kind is SignalKind.RANK_EXITED and signal.data == {"exit_code": 1}


@pytest.mark.parametrize("kind", ["node_down", "probe_failed", "agent_silent", "of the future"])
def test_an_agent_cannot_send_signals_of_other_sensors(kind: str) -> None:
    assert messages.signal({"kind": kind, "age": 0, "generation": 1}, ME, 0.0) is None


def test_an_outcome_carries_its_actions_key() -> None:
    key = {"incident_id": 4, "generation": 2, "ordinal": 1}
    outcome = messages.outcome({"key": key, "state": "done", "data": {"port": 1}}, now=5.0)
    assert (outcome.key, outcome.state) == (ActionKey(4, 2, 1), OutcomeState.DONE)
    assert outcome.data == {"port": 1} and outcome.at == 5.0


@pytest.mark.parametrize("change", [{"key": None}, {"key": 3}, {"state": "maybe"}, {"data": 1}])
def test_an_odd_outcome_is_refused(change: dict[str, object]) -> None:
    key = {"incident_id": 4, "generation": 2, "ordinal": 1}
    with pytest.raises(ProtocolError):
        messages.outcome({"key": key, "state": "done"} | change, now=5.0)


def test_an_order_for_ten_thousand_ranks_fits_a_frame_and_comes_back_whole() -> None:
    slots = tuple(Slot(n, f"{n:032x}", f"node-{n // 8:04}", n % 8) for n in range(10_000))
    given = Assignment(2, "o", slots)
    args: dict[str, object] = {"master_node": "n1"}
    key = ActionKey(4, 2, 1)
    action = Action(key, ActionKind.START_RANKS, 7, "n1", args, assignment=given)
    data = encode_body({"v": 1, **messages.order(action)})
    assert len(data) < FRAME_LIMIT_BYTES
    body = decode_body(data)
    assert body["key"] == {"incident_id": 4, "generation": 2, "ordinal": 1}
    assert messages.assignment_from(body["args"]["assignment"]) == given


@pytest.mark.parametrize("said", ["0", [True], [-1], [70_000], list(range(1025)), None])
def test_ranks_that_regroup_are_believed_only_in_their_form(said: object) -> None:
    body = state(beat=1, regrouping=said)
    with pytest.raises(ProtocolError, match="regrouping"):
        messages.beat(body, ME, 100.0)


def test_ranks_that_regroup_are_none_where_an_older_agent_does_not_say() -> None:
    said = messages.beat(state(beat=1, regrouping=[3, 0]), ME, 100.0)
    assert said.regrouping == (3, 0)
    assert messages.beat(state(beat=1), ME, 100.0).regrouping == ()
