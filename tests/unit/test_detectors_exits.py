"""A rank's end: what its signal says, and what its last words say better."""

from __future__ import annotations

import pytest

from detectors.exits import classify_exit
from detectors.verdict import Blame, Kind
from unicrond.model.incident import Severity


def test_an_exit_with_0_is_no_failure_whatever_was_printed() -> None:
    assert not classify_exit(0, None, "KeyError: 'x'").is_failure


@pytest.mark.parametrize(
    ("signal", "kind", "blame"),
    [
        (9, Kind.EXITED, Blame.UNKNOWN),
        (11, Kind.EXITED, Blame.SELF),
        (7, Kind.SHM, Blame.SELF),
        (15, Kind.EXITED, Blame.UNKNOWN),
        (6, Kind.EXITED, Blame.SELF),
    ],
)
def test_without_words_the_signal_speaks(signal: int, kind: Kind, blame: Blame) -> None:
    by_signal = classify_exit(None, signal, "")
    assert (by_signal.kind, by_signal.blame) == (kind, blame)
    assert classify_exit(128 + signal, None, "").kind is kind


def test_last_words_that_say_more_than_died_weigh_more_than_the_signal() -> None:
    verdict = classify_exit(
        None, 6, "terminate called after throwing an instance of 'c10::Error'\n"
        "  what():  CUDA error: an illegal memory access was encountered"
    )  # fmt: skip
    assert verdict.kind is Kind.ILLEGAL_ACCESS


def test_a_sigkill_with_the_kernels_word_beside_it_is_memory() -> None:
    verdict = classify_exit(
        None, 9, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0"
    )
    assert verdict.kind is Kind.HOST_OOM


def test_harmless_words_leave_the_exit_code_to_speak() -> None:
    verdict = classify_exit(1, None, "FutureWarning: torch.load with weights_only=False")
    assert (verdict.kind, verdict.severity) == (Kind.EXITED, Severity.SEV2)
    assert verdict.evidence == "exit code 1"


def test_a_program_that_is_not_there_recurs() -> None:
    verdict = classify_exit(127, None, "")
    assert (verdict.kind, verdict.recurs) == (Kind.CONFIGURATION, True)


def test_a_user_bug_recurs() -> None:
    assert classify_exit(1, None, "SyntaxError: invalid syntax").recurs
