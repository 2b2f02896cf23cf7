"""The Xid catalogue, and what moves a verdict away from it."""

from __future__ import annotations

import pytest

from detectors.classification import classify
from detectors.verdict import Kind
from detectors.xid import CATALOGUE, ROWS, SEVERITY, Origin
from unicrond.model.incident import Severity


def line(code: int, words: str = "pid=1896, name=python3, Ch 00000008") -> str:
    return f"[ 512.1] NVRM: Xid (PCI:0000:3b:00): {code}, {words}"


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_of_the_catalogue_gets_the_severity_of_its_origin(code: int) -> None:
    verdict = classify("dmesg/kern.log", line(code, "Fatal"))
    assert verdict.rule == f"xid.{code}"
    assert verdict.severity == SEVERITY[CATALOGUE[code].origin]


@pytest.mark.parametrize("code", [13, 31, 43])
def test_the_applications_own_faults_never_take_a_node_out(code: int) -> None:
    assert CATALOGUE[code].origin is Origin.APPLICATION
    assert classify("dmesg/kern.log", line(code)).severity is Severity.SEV2


def test_many_programs_astray_on_one_gpu_alone_condemn_the_gpu() -> None:
    fault = "NVRM: Xid (PCI:0000:%s:00): 31, pid=%d, Ch 00000008, MMU Fault: faulted @ 0x7fd7"
    one = "\n".join(fault % ("db", pid) for pid in (1, 2, 3))
    assert classify("dmesg/kern.log", one).severity is Severity.SEV1
    several = "\n".join(fault % (f"a{pid}", pid) for pid in (1, 2, 3))
    assert classify("dmesg/kern.log", several).severity is Severity.SEV2


def test_clean_up_after_a_kill_is_no_failure_and_after_another_xid_is_that_xid() -> None:
    assert not classify("dmesg/kern.log", line(45)).is_failure
    after = classify("dmesg/kern.log", line(45, "pid=1, Ch 1 caused by previous Xid 149"))
    assert (after.kind, after.severity) == (Kind.NVLINK, Severity.SEV1)


@pytest.mark.parametrize(
    ("action", "severity"),
    [
        ("from 0x0 (None) to 0x1 (GPU Reset Required)", Severity.SEV1),
        ("from 0x0 (None) to 0x2 (Node Reboot Required)", Severity.SEV1),
        ("from 0x2 (Node Reboot Required) to 0x0 (None)", Severity.SEV2),
    ],
)
def test_the_drivers_recovery_action_overrules_the_code(action: str, severity: Severity) -> None:
    text = f"{line(13)}\n{line(154, f'GPU recovery action changed {action}')}"
    assert classify("dmesg/kern.log", text).severity is severity


def test_nvlink_5_codes_say_themselves_whether_they_are_fatal() -> None:
    nonfatal = line(145, "RLW_RXPIPE Nonfatal XC0 i0 Link 12 (0x040980c2 0x00000008)")
    fatal = line(145, "RLW_REMAP Fatal XC0 i0 Link 12 (0x040980c2 0x00000040)")
    assert classify("dmesg/kern.log", nonfatal).severity is Severity.SEV2
    assert classify("dmesg/kern.log", fatal).severity is Severity.SEV1


def test_an_out_of_range_address_makes_a_graphics_exception_an_illegal_access() -> None:
    text = line(13, "Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address")
    assert classify("dmesg/kern.log", text).kind is Kind.ILLEGAL_ACCESS


def test_a_code_that_nobody_documented_is_an_error_of_the_driver() -> None:
    verdict = classify("dmesg/kern.log", line(999))
    assert (verdict.kind, verdict.blame) == (Kind.GPU_DRIVER, "self")


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (0000:03:00): 79, GPU has fallen off the bus",
        "NVRM: Xid (PCI:0000:3b:00.0): 79, pid='<unknown>', name=<unknown>, GPU has fallen off",
        "kernel: NVRM: Xid (PCI:0000:3b:00 GPU-I:07): 79, pid=1",
        "XID 79 on gpu 3",
    ],
)
def test_old_and_new_ways_of_printing_a_code_are_read(text: str) -> None:
    assert classify("dmesg/kern.log", text).rule == "xid.79"


def test_no_code_stands_in_the_catalogue_twice() -> None:
    assert len(ROWS) == len(CATALOGUE)
