"""What `unicronctl report` makes of the ledger and of Slurm's accounting."""

from __future__ import annotations

import time
from typing import Any

import pytest

from unicrond.ctl.accounted import Accounted, accounted, held
from unicrond.ctl.report import moment
from unicrond.errors import BadInput
from unicrond.model.accounting import Spell


def spell(began: float, ended: float | None, state: str = "COMPLETED", gpus: int = 8) -> Spell:
    return Spell(7, "alice", "llama", state, 0.0, began, ended, gpus, ("n1",))


def test_a_row_of_a_resized_job_ends_where_the_next_begins() -> None:
    rows = [spell(0, 100, "RESIZING", 16), spell(40, 100), spell(120, 150)]
    assert held(rows, False, 0, 1000) == (40 * 16 + 60 * 8 + 30 * 8, False)


def test_a_row_that_never_ends_counts_only_while_slurm_lists_the_job() -> None:
    assert held([spell(10, None, "RUNNING")], True, 0, 100) == (90 * 8, False)
    assert held([spell(10, None, "RUNNING")], False, 0, 100) == (0, True)
    assert held([spell(10, None, "RUNNING"), spell(50, 60)], False, 0, 100) == (50 * 8, False)


def test_only_what_lies_within_the_time_counts() -> None:
    assert held([spell(0, 100), spell(200, 300)], False, 50, 80) == (30 * 8, False)


def test_accounting_and_ledger_are_joined_by_job() -> None:
    other = Spell(9, "bob", "x", "RUNNING", 0.0, 0.0, None, 4, ("n2",))
    without = Spell(10, "bob", "x", "COMPLETED", 0.0, 0.0, 9.0, 0, ("n2",))
    rows = [{"key": "7", "gpu_seconds": 700.0}, {"key": "8", "gpu_seconds": 1.0}]
    found = accounted([spell(0, 100), other, without], rows, set(), 0, 1000)
    assert found.jobs == {7: {"accounting": 800.0, "ledger": 700.0}}
    assert (found.runaway, found.as_dict()["unwatched"]) == ([9], 100.0)
    assert "rows that never end, not counted: 9" in Accounted.sentence(found.as_dict())


@pytest.mark.parametrize(
    ("text", "back"),
    [("now", 0), ("now-2days", 172_800), ("now-1hour", 3600), ("now-1weeks", 604_800)],
)
def test_times_are_written_as_for_slurm(text: str, back: float) -> None:
    assert time.time() - moment(text, "--from") == pytest.approx(back, abs=60)


def test_a_time_that_is_none_is_refused() -> None:
    assert moment("2026-11-30T12:00:00", "--to") == moment("2026-11-30 12:00", "--to")
    for text in ("yesterday", "now-3fortnights", "2026-13-01", ""):
        with pytest.raises(BadInput, match=r"--from: .* is no time"):
            moment(text, "--from")


def row(key: str, **causes: float) -> dict[str, Any]:
    whole = sum(causes.values())
    lost = whole - causes.get("training", 0.0)
    return {
        "key": key, "gpu_seconds": whole, "lost_gpu_seconds": lost, "goodput": 0.9,
        "causes": causes,
    }  # fmt: skip


def test_the_page_has_plots_and_believes_no_name() -> None:
    from unicrond.ctl.reportpage import page  # slow to import

    rows = [row("<script>$x", training=3600.0, detection=36.0), row("ml", training=7200.0)]
    found = {
        "began": 1.0, "ended": 2.0, "by": "account", "rows": rows, "more": False,
        "total": row("all", training=10800.0, detection=36.0),
    }  # fmt: skip
    text = page(found)
    assert text.count("<svg") == text.count("</svg>") == 2
    assert "<script" not in text
    assert "&lt;script&gt;$x" in text
    assert "src=" not in text
    assert "3.01 GPU-hours were held, 0.01 of them lost, goodput 90.0%" in text
