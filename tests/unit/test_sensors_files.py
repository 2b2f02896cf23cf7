"""Sensors that read files: ports under /sys, memory events of a cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors.verdict import Kind
from unicrond.agent.sensors.cgroup import Cgroup, events_file
from unicrond.agent.sensors.infiniband import InfiniBand
from unicrond.agent.sensors.runner import SensorOff
from unicrond.agent.settings import Settings, load
from unicrond.errors import BadInput

V2 = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n"
V1 = "5:devices:/\n4:memory:/slurm/uid_1/job_7/step_0\n0::/\n"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def port(root: Path, state: str = "4: ACTIVE", device: str = "mlx5_0", downs: int = 0) -> None:
    folder = root / "class/infiniband" / device / "ports/1"
    (folder / "counters").mkdir(parents=True, exist_ok=True)
    (folder / "state").write_text(state + "\n")
    (folder / "counters/link_downed").write_text(f"{downs}\n")


def test_a_node_without_ports_has_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(SensorOff, match="no port"):
        list(InfiniBand(tmp_path).look())


def test_a_port_that_goes_down_is_told_after_two_seconds_and_once(tmp_path: Path) -> None:
    clock = Clock()
    sensor = InfiniBand(tmp_path, clock)
    port(tmp_path)
    port(tmp_path, "1: DOWN", "mlx5_9")  # never in use
    assert list(sensor.look()) == []
    port(tmp_path, "1: DOWN")
    told = []
    for _ in range(10):
        clock.now += 0.5
        told += [(clock.now, s.kind, s.where) for s in sensor.look()]
    assert told == [(102.5, Kind.PORT_DOWN, "mlx5_0/1")]


def test_a_port_whose_device_vanishes_leaves_the_others_watched(tmp_path: Path) -> None:
    sensor = InfiniBand(tmp_path, Clock())
    port(tmp_path)
    list(sensor.look())
    port(tmp_path, downs=1)
    assert [s.kind for s in sensor.look()] == [Kind.FLAPPING]


@pytest.mark.parametrize(
    ("membership", "name"),
    [
        (V2, "system.slice/slurmstepd.scope/job_7/memory.events"),
        (V1, "memory/slurm/uid_1/job_7/memory.oom_control"),
        ("0::/\n", "memory.events"),
    ],
)
def test_the_events_of_the_whole_job_are_read(tmp_path: Path, membership: str, name: str) -> None:
    file = tmp_path / "fs/cgroup" / name
    file.parent.mkdir(parents=True)
    file.write_text("oom_kill_disable 0\noom_kill 1\n")
    sensor = Cgroup(tmp_path, membership)
    assert list(sensor.look()) == []
    file.write_text("oom_kill_disable 0\noom_kill 3\n")
    assert [s.kind for s in sensor.look()] == [Kind.HOST_OOM]
    assert list(sensor.look()) == []


def test_a_job_without_a_memory_cgroup_is_not_watched(tmp_path: Path) -> None:
    assert events_file(tmp_path, V2) is None
    with pytest.raises(SensorOff):
        list(Cgroup(tmp_path, V2).look())


def test_sensors_are_switched_off_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[agent]\nsensors = cgroup\nsys_root = /elsewhere\n")
    assert load((file,)) == Settings(sensors=("cgroup",), sys_root="/elsewhere")
    file.write_text("[agent]\nsensors =\n")
    assert load((file,)).sensors == ()


def test_an_unknown_sensor_is_named_beside_those_there_are(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("[agent]\nsensors = nvml, gremlins\n")
    with pytest.raises(BadInput, match=r"no sensor 'gremlins'; known: nvml, infiniband, cgroup"):
        load((file,))
