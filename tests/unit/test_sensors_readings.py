"""What two looks at a device mean."""

from __future__ import annotations

from dataclasses import replace

import pytest

from detectors.readings import (
    LINK_ERRORS,
    PORT_DOWN_SECONDS,
    SLOWED_SECONDS,
    Gpu,
    Port,
    first_gpu,
    gpu_changed,
    gpu_crept,
    oom_kills,
    port_changed,
    xid_seen,
)
from detectors.verdict import Kind
from unicrond.model.incident import Severity

WELL = Gpu(links=frozenset({0, 1}), ecc_aggregate=7)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"lost": True}, Kind.GPU_LOST),
        ({"ecc_volatile": 1}, Kind.ECC),
        ({"ecc_aggregate": 8}, Kind.ECC),
        ({"remap_failed": True}, Kind.ECC),
        ({"remap_pending": True}, Kind.ROW_REMAP),
        ({"links": frozenset({0})}, Kind.NVLINK),
        ({"recovery": 2}, Kind.GPU_DRIVER),
        ({"slowed_seconds": SLOWED_SECONDS}, Kind.THROTTLE),
    ],
)
def test_what_changes_for_the_worse_is_told_once(change: dict[str, object], kind: Kind) -> None:
    ill = replace(WELL, **change)  # type: ignore[arg-type]
    (told,) = gpu_changed("gpu 3", WELL, ill)
    assert (told.kind, told.severity, told.where) == (kind, Severity.SEV1, "gpu 3")
    assert list(gpu_changed("gpu 3", ill, ill)) == []
    assert list(gpu_changed("gpu 3", ill, WELL)) == []


def test_counts_from_before_the_first_look_are_nobodys_fault_but_states_are() -> None:
    old = Gpu(ecc_volatile=4, ecc_aggregate=9, remap_pending=True, pcie_replays=10**6)
    assert list(gpu_changed("gpu 0", first_gpu(old), old)) == []
    needs_reset = replace(old, recovery=1)
    assert [s.kind for s in gpu_changed("gpu 0", first_gpu(needs_reset), needs_reset)] == [
        Kind.GPU_DRIVER
    ]


def test_link_errors_count_by_the_minute() -> None:
    few, many = replace(WELL, link_errors=LINK_ERRORS - 1), replace(WELL, link_errors=LINK_ERRORS)
    assert list(gpu_crept("gpu 0", WELL, few)) == []
    assert [s.kind for s in gpu_crept("gpu 0", WELL, many)] == [Kind.NVLINK]


@pytest.mark.parametrize(
    ("code", "kind", "severity"),
    [
        (79, Kind.GPU_LOST, Severity.SEV1),
        (94, Kind.ECC, Severity.SEV1),
        (31, Kind.ILLEGAL_ACCESS, Severity.SEV2),
        (13, Kind.CUDA, Severity.SEV2),
        (45, Kind.NON_FAILURE, Severity.NONE),
    ],
)
def test_an_xid_told_by_number_means_what_the_drivers_line_means(
    code: int, kind: Kind, severity: Severity
) -> None:
    seen = xid_seen("gpu 1", "0000:10:00.0", code)
    assert (seen.kind, seen.severity) == (kind, severity)


def test_a_port_is_down_after_a_while_and_back_before_is_a_flap() -> None:
    up, away = Port(True), Port(False, inactive_seconds=PORT_DOWN_SECONDS / 2)
    assert list(port_changed("mlx5_0/1", up, away)) == []
    assert [s.kind for s in port_changed("mlx5_0/1", away, up)] == [Kind.FLAPPING]
    gone = Port(False, inactive_seconds=PORT_DOWN_SECONDS)
    assert [s.kind for s in port_changed("mlx5_0/1", away, gone)] == [Kind.PORT_DOWN]


def test_a_flap_too_short_to_be_seen_shows_in_the_ports_own_count() -> None:
    assert [s.kind for s in port_changed("p", Port(True, 3), Port(True, 4))] == [Kind.FLAPPING]


def test_only_kills_since_the_last_look_are_told() -> None:
    assert list(oom_kills(2, 2)) == []
    (told,) = oom_kills(2, 3)
    assert (told.kind, told.severity) == (Kind.HOST_OOM, Severity.SEV2)
