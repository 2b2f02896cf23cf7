"""How far a rule is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors.classification import RULES, classify
from detectors.remedies import ANYTHING_ELSE, remedy
from detectors.trust import (
    BARS,
    MOST_REVIEWS,
    NEW,
    OF_OTHERS,
    Ledger,
    Record,
    bar_of,
    catalogue,
    held,
    lower_bound,
)
from detectors.verdict import Blame, Kind, Verdict
from unicrond.model.incident import Proof, Review, Severity

MESSAGES = Path(__file__).parents[1] / "data" / "signals" / "messages.txt"


def review(incident: int, proof: Proof = Proof.REFUTED, owner: str = "alice") -> Review:
    return Review(incident, "hang.overdue", proof, 1.0, owner)


@pytest.mark.parametrize(
    ("confirmed", "refuted", "bound"),
    [(0, 0, 0.0), (8, 0, 0.747), (20, 3, 0.715), (0, 5, 0.0), (81, 182, 0.263)],
)
def test_the_bound_is_wilsons(confirmed: int, refuted: int, bound: float) -> None:
    """The last one stands in textbooks with z = 1.96; here it is one-sided."""
    assert lower_bound(confirmed, refuted) == pytest.approx(bound, abs=0.001)


@pytest.mark.parametrize("rule", ["exit.sigkill", "agent.lease", "silence.lost", "slurm.took"])
def test_what_happened_is_acted_upon_whatever_its_record(rule: str) -> None:
    assert held(rule, Record(refuted=1000)) == ""


@pytest.mark.parametrize(
    ("rule", "most_refuted"),
    [
        ("hang.overdue", 1),
        ("exception.raised", 1),
        ("python.bug", 1),
        ("xid.79", 2),
        ("nvml.ecc", 2),
    ],
)
def test_a_rule_that_only_refutations_are_known_of_stops_acting(
    rule: str, most_refuted: int
) -> None:
    assert held(rule, Record()) == ""
    assert held(rule, Record(refuted=most_refuted)) == ""
    assert held(rule, Record(refuted=most_refuted + 1)) != ""


def test_a_rule_acts_again_once_it_was_right_often_enough() -> None:
    assert held("hang.overdue", Record(confirmed=1, refuted=2)) != ""
    assert held("hang.overdue", Record(confirmed=2, refuted=2)) == ""


def test_a_rule_that_nobody_knows_only_observes_until_25_were_confirmed() -> None:
    assert bar_of("gremlins.seen") is NEW
    assert held("gremlins.seen", Record(confirmed=24)) != ""
    assert held("gremlins.seen", Record(confirmed=25)) == ""


def test_the_reason_tells_the_record_and_the_bar() -> None:
    assert held("hang.overdue", Record(1, 3, 9)) == (
        "rule hang.overdue is below its bar (1 of 4 confirmed, needs 0.60)"
    )


def test_the_last_word_on_an_incident_counts() -> None:
    ledger = Ledger([review(1), review(1, Proof.CONFIRMED), review(2, Proof.UNDECIDED)])
    assert ledger.whole("hang.overdue") == Record(1, 0, 1)
    assert ledger.of(1) == review(1, Proof.CONFIRMED)


def test_a_users_word_counts_in_full_for_the_user_and_hardly_for_others() -> None:
    ledger = Ledger([review(n) for n in range(5)] + [review(9, owner="")])
    assert ledger.seen_by("hang.overdue", "alice").refuted == 6
    assert ledger.seen_by("hang.overdue", "bob").refuted == OF_OTHERS + 1
    assert ledger.seen_by("hang.overdue", "").refuted == OF_OTHERS + 1
    assert ledger.whole("hang.overdue").refuted == 6
    assert ledger.owners("hang.overdue") == ["alice"]


def test_one_user_alone_silences_no_rule_for_others() -> None:
    ledger = Ledger([review(n) for n in range(1000)])
    assert held("hang.overdue", ledger.seen_by("hang.overdue", "alice"))
    assert not held("hang.overdue", ledger.seen_by("hang.overdue", "bob"))


def test_old_incidents_are_forgotten() -> None:
    ledger = Ledger([review(n) for n in range(MOST_REVIEWS + 3)])
    assert ledger.whole("hang.overdue").refuted == MOST_REVIEWS
    assert ledger.of(2) is None
    assert ledger.of(3) is not None


def test_every_row_of_the_table_is_of_a_rule_or_of_the_statistics() -> None:
    names = {*catalogue(), *(name.partition(".")[0] for name in catalogue())}
    assert set(BARS) - names <= {"iterations", "sensor", "sxid"}


def test_the_catalogue_names_every_rule_that_speaks_for_a_known_message() -> None:
    blocks = MESSAGES.read_text().split("\n## ")[1:]
    verdicts = [
        classify(head.split(" | ")[3], text)
        for head, _, texts in (block.partition("\n") for block in blocks)
        for text in texts.split("\n\n")
    ]
    failures = [v for v in verdicts if v.is_failure]
    assert len(failures) > 100
    unknown = {v.rule for v in failures if v.rule not in catalogue()}
    assert {rule for rule in unknown if not rule.startswith(("sxid.", "xid."))} == set()


def test_whoever_says_that_a_restart_is_pointless_says_what_helps() -> None:
    kinds = {rule.kind for rule in RULES if rule.recurs}
    for kind in kinds - {Kind.SOFTWARE}:
        verdict = Verdict(kind, Severity.SEV2, Blame.SELF, True, "x", "")
        assert remedy(verdict) != ANYTHING_ELSE, kind


def test_a_remedy_repeats_the_words_that_it_rests_on() -> None:
    found = classify("stderr/traceback", "Traceback (most recent call last):\nNameError: name 'x'")
    assert remedy(found) == "mend the program (NameError: name 'x')"
    assert remedy(classify("stderr/traceback", "Killed")) == ""
