"""One text, one verdict: messages as software prints them, and what company does to words."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.classification import PREFILTER, RULES, classify
from detectors.guess import TABLE
from detectors.prefilter import ORDINARY
from detectors.trust import bar_of
from detectors.verdict import Blame, Kind, Verdict
from tests.data.signals.labelled import Message, messages
from unicrond.model.incident import Severity

KNOWN = list(messages())
WRITTEN = ("messages.txt", "sources.txt")
POSTED = ("issues.txt", "second.txt", "third.txt", "fourth.txt", "fifth.txt")
FILES = WRITTEN + POSTED


@cache
def judged(name: str) -> list[tuple[Message, Verdict]]:
    return [(one, classify(one.source_kind, one.text)) for one in messages(name)]


def wrong(name: str) -> list[tuple[str, ...]]:
    return [
        (verdict.kind, verdict.severity, verdict.blame, known.text[:60])
        for known, verdict in judged(name)
        if (verdict.kind, verdict.severity, verdict.blame)
        != (known.kind, known.severity, known.blame)
    ]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_softwares_own_messages_are_named_weighed_and_blamed_rightly(name: str) -> None:
    assert wrong(name) == []


@pytest.mark.parametrize("name", POSTED)
def test_what_people_posted_is_named_weighed_and_blamed_rightly(name: str) -> None:
    assert len(wrong(name)) <= 0.05 * len(judged(name))


def test_no_harmless_line_is_taken_for_a_failure() -> None:
    assert [
        one.text
        for name in FILES
        for one, verdict in judged(name)
        if one.severity == "NONE" and verdict.is_failure
    ] == []


def test_every_failure_rests_on_words_of_its_text() -> None:
    for _, verdict in (one for name in FILES for one in judged(name)):
        assert not verdict.is_failure or (verdict.evidence and verdict.rule)


def test_every_phrase_that_needs_no_pattern_passes_the_prefilter() -> None:
    unreachable = [
        (rule.name, phrase)
        for rule in RULES
        if not rule.pattern
        for phrase in rule.says
        if not PREFILTER.passes(phrase)
    ]
    assert unreachable == []


def test_every_phrase_is_lower_case_since_texts_are_lowered() -> None:
    assert [p for rule in RULES for p in rule.says if p != p.lower()] == []


def test_ordinary_words_do_not_make_a_line_suspicious() -> None:
    assert PREFILTER.rare.isdisjoint(ORDINARY)


def test_every_rule_has_a_name_of_its_own() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))


def read(*lines: str, source_kind: str = "stderr/traceback") -> Verdict:
    return classify(source_kind, "\n".join(lines))


def test_a_python_exception_wins_over_the_closed_connection_that_follows() -> None:
    verdict = read(
        "KeyError: 'input_ids'",
        "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.12]:43121",
    )
    assert verdict.kind is Kind.USER_BUG
    assert verdict.recurs


@pytest.mark.parametrize(
    ("line", "kind", "rule"),
    [
        ("ERROR: gateway: RDMA handshake refused by the peer's QP", Kind.NETWORK, "guess.rdma"),
        ("ERROR: gateway said no", Kind.SOFTWARE, "unknown"),
        ("ERROR: npu socket handshake failed", Kind.SOFTWARE, "unknown"),
    ],
)
def test_an_error_that_no_rule_knows_is_guessed_by_its_words(
    line: str, kind: Kind, rule: str
) -> None:
    verdict = read(line)
    assert (verdict.kind, verdict.rule) == (kind, rule)


def test_a_guess_takes_a_node_only_at_the_word_of_a_device() -> None:
    line = "ERROR: nvswitch tray 3 did not answer"
    assert read(line).rule == "unknown"
    told = read(line, source_kind="nvidia-smi/dcgm text")
    assert (told.rule, told.severity) == ("guess.fabric", Severity.SEV1)


def test_a_guess_is_believed_as_much_as_the_error_that_it_explains() -> None:
    assert {bar_of(f"guess.{row[0]}") for row in TABLE} == {bar_of("unknown")}


def test_an_ecc_xid_wins_over_the_cuda_error_that_it_causes() -> None:
    verdict = read(
        "RuntimeError: CUDA error: unspecified launch failure",
        "NVRM: Xid (PCI:0000:10:1c): 48, pid=1896, name=python, DBE (Double Bit Error) ECC Error",
    )
    assert (verdict.kind, verdict.severity) == (Kind.ECC, Severity.SEV1)


def test_a_time_limit_explains_every_error_printed_with_it() -> None:
    verdict = read(
        "srun: error: node1: task 0: Exited with exit code 1",
        "slurmstepd: error: *** JOB 1 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME "
        "LIMIT ***",
        "RuntimeError: NCCL error: unhandled system error",
    )
    assert (verdict.kind, verdict.severity) == (Kind.TIME_LIMIT, Severity.NONE)


def test_a_port_that_came_back_is_over_and_one_that_did_not_is_down() -> None:
    error = "n1:9:30 [0] net_ib.cc:87 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error"
    active = "n1:9:30 [0] net_ib.cc:87 NCCL WARN NET/IB : mlx5_2:1 Got async event : port active"
    assert read(error, active).severity is Severity.NONE
    assert read(error).kind is Kind.PORT_DOWN


def test_exceptions_under_exception_ignored_are_nobodys_failure() -> None:
    verdict = read(
        "Exception ignored in: <function Loader.__del__ at 0x7f3d1c1b2d30>",
        "Traceback (most recent call last):",
        '  File "loader.py", line 1510, in __del__',
        "AttributeError: 'NoneType' object has no attribute 'close'",
        "step 100 | loss 2.1",
    )
    assert not verdict.is_failure


def test_an_exception_after_an_ignored_one_still_counts() -> None:
    verdict = read(
        "Exception ignored in: <function Loader.__del__ at 0x7f3d1c1b2d30>",
        "AttributeError: 'NoneType' object has no attribute 'close'",
        "step 100 | loss 2.1",
        "KeyError: 'labels'",
    )
    assert verdict.kind is Kind.USER_BUG


def test_a_loss_that_jumps_and_comes_back_is_no_failure() -> None:
    losses = ["2.21", "2.19", "2.20", "5.09", "2.25", "2.21"]
    assert not read(*(f"step {i} | loss: {x}" for i, x in enumerate(losses))).is_failure
    assert read(*(f"step {i} | loss: {x}" for i, x in enumerate([*losses, "6.1", "6.2"]))).kind is (
        Kind.NAN
    )


def test_colours_and_progress_bars_hide_nothing() -> None:
    verdict = read("\x1b[31m 45%|####\rRuntimeError: CUDA out of memory. Tried to\x1b[0m allocate")
    assert verdict.kind is Kind.GPU_OOM


def test_guesses_listed_by_the_software_are_not_facts() -> None:
    verdict = read(
        "The actor is dead because its worker process has died. There are some potential root "
        "causes. (1) The process is killed by SIGKILL by OOM killer. (2) SIGSEGV."
    )
    assert (verdict.kind, verdict.blame) == (Kind.EXITED, Blame.PEER)


def test_a_lost_peer_after_the_last_step_is_no_failure() -> None:
    bar = "Progress on:train %s rate:3.3s/it elapsed:23:52 loss=3.1"
    lost = "RuntimeError: Connection closed by peer [10.0.0.12]:43121"
    assert not read(bar % "200it/200it", lost).is_failure
    assert read(bar % "100it/200it", lost).kind is Kind.LOST


def test_a_harmless_line_still_says_whom_it_is_about() -> None:
    assert read("Sending process 412 closing signal SIGTERM").blame is Blame.PEER
    assert read("HW Slowdown : Not Active", "SW Power Cap : Active").blame is Blame.SELF
    assert read("step 100 | loss 2.1").blame is Blame.UNKNOWN


def test_a_health_check_is_read_by_its_name() -> None:
    check = "ERROR: nhc: Health check failed: check_%s"
    assert read(check % "fs_mount: /scratch not mounted").kind is Kind.STORAGE
    assert read(check % "nccl: BUS BW (expected >=40 GB/s, got 20 GB/s)").kind is Kind.STRAGGLER
    assert read(check % "gpu_xid: NVRM: Xid (PCI:0002:00:00): 48, pid=1").kind is Kind.ECC


def test_of_nccls_own_lines_the_first_trouble_is_the_root() -> None:
    network = "n1:9:30 [0] NCCL WARN NET/IB : Got completion with error 12, opcode 1"
    memory = "n1:9:30 [0] NCCL WARN Cuda failure 'an illegal memory access was encountered'"
    assert read(network, memory).kind is Kind.NETWORK
    assert read(memory, network).kind is Kind.ILLEGAL_ACCESS


def test_losses_of_training_and_evaluation_are_not_mixed() -> None:
    lines = [f"iter {i}: train loss 1.4" for i in range(4)]
    assert not read(*lines, "iter 4: val loss 2.9", "iter 5: val loss 2.8").is_failure


def test_a_daemon_shot_by_the_kernel_is_no_failure_of_the_training() -> None:
    shot = "Out of memory: Killed process 911 (%s) total-vm:912341kB"
    assert not read(shot % "fluent-bit", source_kind="dmesg/kern.log").is_failure
    assert read(shot % "python3", source_kind="dmesg/kern.log").is_failure


def test_a_machine_check_bank_says_itself_whether_it_was_corrected() -> None:
    line = "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 7: %s"
    assert not read(line % "8c00004000010091").is_failure
    assert read(line % "bd80000000100134").severity is Severity.SEV1


def test_unknown_vocabulary_is_other_software_error_with_nobody_blamed() -> None:
    verdict = read("FluxError: the plasma inlet rejected the request")
    assert (verdict.kind, verdict.blame) == (Kind.SOFTWARE, Blame.UNKNOWN)


def test_megabytes_on_one_line_are_read_at_both_ends() -> None:
    assert read("KeyError: 'x'" + " " * 3_000_000).kind is Kind.USER_BUG
    assert read("x" * 3_000_000 + "\nKeyError: 'x'").kind is Kind.USER_BUG


TEXTS = st.one_of(
    st.text(max_size=400),
    st.binary(max_size=400).map(lambda raw: raw.decode("utf-8", errors="replace")),
    st.lists(st.sampled_from([one.text for one in KNOWN]), max_size=4).map("\n".join),
    st.tuples(st.sampled_from([one.text for one in KNOWN]), st.text(max_size=80)).map("".join),
)


@given(source_kind=st.text(max_size=20), text=TEXTS)
def test_no_text_makes_it_raise(source_kind: str, text: str) -> None:
    verdict = classify(source_kind, text)
    assert verdict.is_failure == (verdict.severity is not Severity.NONE)


def test_what_an_exception_says_makes_it_no_harmless_line() -> None:
    assert read("ValueError: device_id 3 is out of range, ignoring it would retry").is_failure


def test_a_check_that_went_well_is_no_failure_whatever_it_looked_for() -> None:
    assert not read(
        "ecc check: exit_code: ExitCode.OK, all GPUs have ECC errors below 1"
    ).is_failure
    assert not read("No XID error was found.").is_failure
    assert read("XID error: 79, XID causes: HW Error.").kind is Kind.GPU_LOST


def test_nccl_warns_of_a_failure_unless_it_says_how_it_goes_on() -> None:
    warning = "n1:9:30 [0] graph/topo.cc:12 NCCL WARN "
    assert read(warning + "Could not find gpu rank 3").is_failure
    assert not read(warning + "NCCL_NET_MERGE_POLICY: unknown value, defaulting to ALL").is_failure


def test_the_reason_of_a_drained_node_is_read_and_maintenance_is_none() -> None:
    state = "State=IDLE+DRAIN Reason=%s [root@2024-05-01T10:00:00]"
    slurm = {"source_kind": "slurmd/slurmctld log"}
    assert read(state % "gres/gpu count too low (7 < 8)", **slurm).kind is Kind.GPU_LOST
    assert read(state % "GPU ECC errors", **slurm).kind is Kind.ECC
    assert read(state % "SlurmdSpoolDir is full", **slurm).kind is Kind.STORAGE
    assert not read(state % "maintenance", **slurm).is_failure
