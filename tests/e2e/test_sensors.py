"""Hardware that fails on a real cluster: seen by the node's sensors, and dealt with."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from stage import LOCKSTEP, NODES, Stage, Training, until

from lab import nvml, processes, services
from lab.hardware import KERNEL_LOG, SYS

pytestmark = pytest.mark.slurm

KNOWN_WITHIN_SECONDS = 1.0


@pytest.fixture
def cluster(stage: Stage) -> Iterator[Stage]:
    """Its nodes have GPUs and ports, as far as sensors can tell."""
    mend(stage)
    stage.agent_conf(sys_root=SYS, nvml_library=f"/opt/unicron/lib/{nvml.NAME}")
    yield stage
    mend(stage)


def mend(stage: Stage) -> None:
    for node in NODES:
        stage.lab.fault("mend-hardware", node=node)


def settled(training: Training) -> Training:
    """Sensors take what they find at their first look for granted."""
    time.sleep(2)
    return training


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("xid", "GPU fell off the bus"), ("ecc", "ECC error"), ("nvlink", "NVLink error")],
)
def test_a_broken_gpu_is_known_at_once_and_its_node_is_left_and_drained(
    cluster: Stage, fault: str, kind: str
) -> None:
    training = settled(cluster.training(LOCKSTEP, "--min-nodes=2"))
    struck = cluster.lab.fault(fault, node="n2", gpu=1).wall_seconds
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n1", "n3"}
    incident = training.heals()
    assert (incident["kind"], incident["severity"], incident["root_node"]) == (kind, "SEV1", "n2")
    assert incident["opened_at"] - struck < KNOWN_WITHIN_SECONDS
    training.until("the node is drained", lambda: "DRAIN" in cluster.node_states()["n2"])
    assert cluster.reason("n2").startswith(f"unicron: {kind} incident=")


def test_a_run_that_needs_all_its_nodes_is_requeued_off_the_broken_one(cluster: Stage) -> None:
    training = settled(cluster.training())
    cluster.lab.fault("gpu-lost", node="n3")
    training.goes_on(generation=1001, within_seconds=100)
    assert "n3" not in {s.node for s in training.of(1001)}
    assert training.heals()["kind"] == "GPU fell off the bus"


def test_a_gpu_that_its_hardware_slows_down_is_left_and_its_node_not_drained(
    cluster: Stage,
) -> None:
    training = settled(cluster.training(LOCKSTEP, "--min-nodes=2"))
    cluster.lab.fault("throttle", node="n2")
    training.goes_on(generation=2, within_seconds=40)
    assert {s.node for s in training.of(2)} == {"n1", "n3"}
    assert training.heals()["kind"] == "thermal/power throttle"
    assert cluster.reasons() == {}


def test_a_programs_own_xid_moves_nothing_and_explains_the_rank_that_dies(cluster: Stage) -> None:
    training = settled(cluster.training())
    cluster.lab.fault("xid", node="n2", code=31)
    time.sleep(2)
    assert training.incidents() == []
    training.kill_rank(1)
    training.goes_on(generation=2)
    assert training.heals()["kind"] == "illegal memory access"
    assert {s.node for s in training.of(2)} == {"n1", "n2", "n3"}
    assert cluster.reasons() == {}


def test_a_rank_killed_for_want_of_memory_is_named_so(cluster: Stage) -> None:
    training = settled(cluster.training())
    cluster.lab.fault("oom", node="n2", job=str(training.job))
    training.goes_on(generation=2)
    assert training.heals()["kind"] == "host out-of-memory kill"
    assert cluster.reasons() == {}


def test_a_port_that_stays_down_is_left_and_one_that_returns_is_not(cluster: Stage) -> None:
    training = settled(cluster.training(LOCKSTEP, "--min-nodes=2"))
    cluster.lab.fault("ib-flap", node="n1")
    time.sleep(4)
    assert training.incidents() == []
    cluster.lab.fault("ib-down", node="n1")
    training.goes_on(generation=2)
    assert {s.node for s in training.of(2)} == {"n2", "n3"}
    assert training.heals()["kind"] == "InfiniBand port down"


def test_a_health_check_tells_what_came_since_the_last_one_and_always_ends_with_0(
    cluster: Stage,
) -> None:
    (sensor,) = (p for p in cluster.inside("n6") if "unicrond.sensor" in p.arguments)
    assert processes.send_signal(sensor, signal.SIGTERM)
    look = ["/opt/unicron/bin/unicron-sensor", "--once", "--node=n6", f"--kernel-log={KERNEL_LOG}"]
    try:
        cluster.lab.exec(look, node="n6")
        assert cluster.reason("n6") == ""
        cluster.lab.fault("xid", node="n6")
        cluster.lab.exec(look, node="n6")
        until("the idle node is drained", lambda: "DRAIN" in cluster.node_states()["n6"])
        assert cluster.reason("n6").startswith("unicron: GPU fell off the bus incident=")
        nobody = cluster.lab.exec([*look, "--kernel-log=/nowhere"], node="n6")
        assert "No such file" in nobody.stderr
    finally:
        services.start_sensor("n6", processes.node_inits(cluster.name)["n6"])
