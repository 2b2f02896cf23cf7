"""The root sensor of a node: its log, and its way to unicrond, where nobody else gets in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from linkworld import DAEMON_UID, FAST, World, eventually

from detectors.readings import Memory
from detectors.verdict import Kind
from unicrond.agent.sensors.runner import SensorOff, body
from unicrond.link.client import DaemonLink
from unicrond.link.handshake import NO_RUN, Identity, Verdict
from unicrond.model.events import SignalArrived
from unicrond.model.incident import Severity
from unicrond.sensor.edac import Edac
from unicrond.sensor.kernellog import KernelLog, judged
from unicrond.sensor.mark import Mark

XID = "NVRM: Xid (PCI:0000:10:00): 79, pid=1234, GPU has fallen off the bus."
QUIET = "eth0: renamed from veth1"


def record(message: str, number: int = 1) -> str:
    return f"4,{number},{number * 1000},-;{message}\n"


def appended(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_was_there_before_is_not_told_and_what_comes_is(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(XID))
    log = KernelLog(path)
    appended(path, record(QUIET) + record(XID, 2))
    (seen,) = log.look().items()
    assert (seen[0].kind, seen[0].where, seen[1]) == (Kind.GPU_LOST, "0000:10:00", 1)
    assert seen[0].evidence == XID


def test_reading_goes_on_where_the_last_look_ended(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    first = KernelLog(path)
    appended(path, record(XID))
    assert len(first.look()) == 1
    appended(path, record(XID.replace("10:00", "20:00")))
    assert [s.where for s in KernelLog(path, first.position).look()] == ["0000:20:00"]


def test_a_line_that_is_half_written_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    appended(path, record(XID)[:40])
    assert not log.look()
    appended(path, record(XID)[40:])
    assert len(log.look()) == 1


def test_a_log_that_was_emptied_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text(record(QUIET) * 20)
    log = KernelLog(path)
    path.write_text(record(XID))
    assert len(log.look()) == 1


def test_a_flood_of_one_xid_is_one_sighting_and_soon_read(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    appended(path, record(XID) * 100_000)
    started, count = time.process_time(), 0
    while count < 100_000:
        (seen,) = log.look().items()
        count += seen[1]
    assert count == 100_000
    assert time.process_time() - started < 2


def test_harmless_lines_and_victims_of_a_kill_are_no_sightings() -> None:
    assert judged(QUIET) is None
    assert judged("NVRM: Xid (PCI:0000:10:00): 45, pid=1, Ch 00000001") is None


DOWN = "mlx5_core 0000:41:00.0 ibp65s0: Link down"


def test_ports_that_went_down_are_judged_once_they_had_time_to_return(tmp_path: Path) -> None:
    expected = {DOWN.replace("down", "up"): Kind.FLAPPING, QUIET: Kind.PORT_DOWN}
    logs = []
    for number, after in enumerate(expected):
        path = tmp_path / f"kmsg{number}"
        path.touch()
        logs.append(KernelLog(path))
        appended(path, record(DOWN))
        assert not logs[-1].look()
        appended(path, record(after))
    for log, kind in zip(logs, expected.values(), strict=True):
        deadline = time.monotonic() + 10
        seen = log.look()
        while not seen and time.monotonic() < deadline:
            seen = log.look()
        assert [s.kind for s in seen] == [kind]
        assert not log.look()


def test_no_log_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SensorOff, match="No such file"):
        KernelLog(tmp_path / "none")


def sensor(world: World, uid: int, node: str = "n1") -> DaemonLink:
    link = DaemonLink(
        [("127.0.0.1", world.port)],
        Identity(NO_RUN, node, f"sensor-{node}"),
        dict,
        lambda _: None,
        world.realm.user(uid),
        {DAEMON_UID},
        pace=FAST,
    )
    link.beat({})
    world._tasks.append(asyncio.get_running_loop().create_task(link.run()))
    return link


def told(link: DaemonLink) -> None:
    sighting = judged(XID)
    assert sighting is not None
    link.send("signal", {"kind": "hardware", "age": 0.0, "generation": 0, **body(sighting, 3)})


def play(story: Callable[[World], object]) -> World:
    async def main() -> World:
        async with World() as world:
            await story(world)  # type: ignore[misc]
            return world

    return asyncio.run(main())


def test_roots_word_arrives_without_a_run_and_makes_no_agent() -> None:
    async def story(world: World) -> None:
        link = sensor(world, 0)
        told(link)
        assert await link.drain(5)

    world = play(story)
    (event,) = world.events
    assert isinstance(event, SignalArrived)
    signal = event.signal
    assert (signal.run_id, signal.node, signal.text) == (None, "n1", XID)
    assert signal.data["kind"] == "GPU fell off the bus"
    assert signal.data["count"] == 3
    assert world.asked == [(NO_RUN, 0, "n1")]


def test_a_user_cannot_speak_for_a_node() -> None:
    async def story(world: World) -> None:
        link = sensor(world, 1000)
        told(link)
        await eventually(lambda: "only root speaks for a node" in link.trouble)

    assert play(story).events == []


def test_a_node_that_slurm_does_not_know_is_refused_for_now() -> None:
    async def story(world: World) -> None:
        world.verdict = Verdict("retry", "Slurm has not told of n9")
        link = sensor(world, 0, "n9")
        told(link)
        await eventually(lambda: world.server.counts["refused"])
        world.verdict = Verdict("ok")
        assert await link.drain(5)

    assert len(play(story).events) == 1


def test_a_sensor_tells_of_hardware_alone() -> None:
    async def story(world: World) -> None:
        link = sensor(world, 0)
        link.send("signal", {"kind": "rank_exited", "age": 0.0, "generation": 0})
        link.send("finished", {"exit_code": 0})
        assert await link.drain(5)

    assert play(story).events == []


def test_the_unit_lets_it_read_the_kernel_log_and_little_else() -> None:
    unit = (Path(__file__).parents[2] / "systemd/unicron-sensor.service").read_text().splitlines()
    assert "ExecStart=/opt/unicron/bin/unicron-sensor" in unit
    assert "DeviceAllow=/dev/kmsg r" in unit
    assert "CapabilityBoundingSet=CAP_SYSLOG" in unit
    assert "RestartPreventExitStatus=2" in unit
    assert not any(line.startswith("ProtectKernelLogs") for line in unit)


def controller(root: Path, uncorrected: int = 0, corrected: int = 0, name: str = "mc0") -> None:
    folder = root / "devices/system/edac/mc" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ue_count").write_text(f"{uncorrected}\n")
    (folder / "ce_count").write_text(f"{corrected}\n")


def test_a_memory_error_that_was_not_corrected_is_told_once(tmp_path: Path) -> None:
    controller(tmp_path, uncorrected=3)
    edac = Edac(tmp_path)
    assert list(edac.look()) == []  # they were there before
    controller(tmp_path, uncorrected=4)
    (seen,) = edac.look()
    assert (seen.kind, seen.severity, seen.where) == (Kind.HOST_MEMORY, Severity.SEV1, "mc0")
    assert list(edac.look()) == []


def test_corrected_memory_errors_are_told_when_they_are_many_within_a_minute(
    tmp_path: Path,
) -> None:
    now = [0.0]
    edac = Edac(tmp_path, clock=lambda: now[0])
    told = []
    for minute in range(4):
        controller(tmp_path, corrected=minute * 900)
        told += edac.look()
        now[0] += 60
    assert told == []
    controller(tmp_path, corrected=5000)
    assert [s.severity for s in edac.look()] == [Severity.SEV3]


def test_a_node_that_counts_no_memory_errors_has_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(SensorOff, match="no memory controller"):
        list(Edac(tmp_path).look())


def test_a_single_look_goes_on_from_the_counts_of_the_last_one(tmp_path: Path) -> None:
    controller(tmp_path, uncorrected=1, corrected=7)
    first = Edac(tmp_path)
    list(first.look())
    mark = Mark.from_text(Mark(4711, first.counts).to_text())
    assert mark == Mark(4711, {"mc0": Memory(1, 7)})
    controller(tmp_path, uncorrected=2, corrected=7)
    assert len(list(Edac(tmp_path, mark.counts).look())) == 1
    assert Mark.from_text("4711") == Mark(4711)


def test_unicrond_learns_where_a_credential_was_sealed() -> None:
    async def story(world: World) -> None:
        link = sensor(world, 0)
        told(link)
        assert await link.drain(5)

    assert play(story).origins == ["127.0.0.1"]
