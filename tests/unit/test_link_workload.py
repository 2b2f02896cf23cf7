"""What a run computes goes over the link whole, and nothing that is off gets through."""

from __future__ import annotations

from dataclasses import replace

import pytest

from unicrond.errors import ProtocolError
from unicrond.link.workload import workload_from, workload_to
from unicrond.model.workload import BatchScaling, Layout, Workload

TOLD = Workload(1.7e17, BatchScaling.FIXED, 512, 7e9, (Layout(8, 2), Layout(4, 1)), 64)


def test_what_is_told_arrives() -> None:
    body = {"workload": workload_to(replace(TOLD, workers=0), 64)}
    assert workload_from(body) == TOLD


def test_an_older_agent_that_tells_nothing_runs_a_plain_script() -> None:
    assert workload_from({}) == Workload()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flops_per_iteration", -1.0),
        ("flops_per_iteration", float("nan")),
        ("scaling", "linear"),
        ("scaling", 3),
        ("micro_batches", 10**9),
        ("workers", -1),
        ("layouts", []),
        ("layouts", [[1]]),
        ("layouts", [[1, 0]]),
        ("layouts", [[1, 2, 3]]),
        ("layouts", "8x1"),
        ("layouts", [[1, 1]] * 100),
    ],
)
def test_what_is_off_is_refused_by_name(field: str, value: object) -> None:
    body = {"workload": {**workload_to(TOLD, 64), field: value}}
    with pytest.raises(ProtocolError, match=rf"`({field}|tensor|pipeline)`|a layout"):
        workload_from(body)
