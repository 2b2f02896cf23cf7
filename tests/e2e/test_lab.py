"""The lab itself: it is a real cluster, its faults are truthful, it leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab import Lab, LabError, LabSpec, processes
from lab.layout import LABS

pytestmark = pytest.mark.slurm

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass
class Raised:
    lab: Lab
    seconds: float


@pytest.fixture(scope="module")
def raised() -> Iterator[Raised]:
    lab = Lab("e2e-lab")
    start = time.monotonic()
    try:
        lab.up(LabSpec(nodes=6))
        yield Raised(lab, time.monotonic() - start)
    finally:
        lab.down()


@pytest.fixture(scope="module", autouse=True)
def services_of_the_host() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes with the names of daemons, outside of any lab: nothing here may hit them."""
    names = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "unicrond")
    running = [subprocess.Popen([name, "900"], executable="/bin/sleep") for name in names]
    yield running
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def lab(raised: Raised) -> Iterator[Lab]:
    yield raised.lab
    raised.lab.exec(["scancel", "--user=alice"])
    _eventually(lambda: not _squeue(raised.lab), 30)


def _eventually(condition: Callable[[], object], within_seconds: float) -> None:
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_seconds} s"
        time.sleep(0.1)


def _squeue(lab: Lab) -> str:
    return lab.exec(["squeue", "--noheader", "--format=%i %T %N"]).stdout.strip()


def _submit(lab: Lab, body: str, *options: str) -> str:
    script = f"#!/bin/bash\n{body}\n"
    done = lab.exec(["sbatch", "--parsable", *options], user="alice", text_in=script)
    job = done.stdout.strip()
    _eventually(lambda: _job_state(lab, job) not in ("PENDING", "CONFIGURING"), 20)
    return job


def _job_state(lab: Lab, job: str) -> str:
    shown = lab.exec(["scontrol", "show", "job", job, "-o"]).stdout
    return shown.split("JobState=")[1].split()[0]


def _state(lab: Lab, node: str) -> str:
    return next(n.slurm_state for n in lab.status().nodes if n.name == node) or "unknown"


def _home(lab: Lab) -> Path:
    return lab.paths.home / "alice"


def test_six_nodes_are_up_in_under_twenty_seconds(raised: Raised) -> None:
    assert raised.seconds < 20
    seen = raised.lab.status()
    assert [node.slurm_state for node in seen.nodes] == ["IDLE"] * 6
    assert all(node.link_up and node.slurmd for node in seen.nodes)
    assert [name for name, runs in seen.daemons.items() if not runs] == ["unicrond"]


def test_a_second_up_of_the_same_name_is_refused(lab: Lab) -> None:
    with pytest.raises(LabError, match="is up already"):
        lab.up()


def test_an_ordinary_user_gets_two_nodes_with_their_gpus(lab: Lab) -> None:
    body = "srun bash -c 'echo $(hostname) $(id -un) $CUDA_VISIBLE_DEVICES'"
    job = _submit(lab, body, "-N2", "--gpus-per-node=8", "--output=gpus.txt")
    _eventually(lambda: _job_state(lab, job) == "COMPLETED", 20)
    lines = (_home(lab) / "gpus.txt").read_text().split("\n")
    gpus = "0,1,2,3,4,5,6,7"
    assert sorted(filter(None, lines)) == [f"n1 alice {gpus}", f"n2 alice {gpus}"]
    recorded = ["sacct", "--noheader", "--parsable2", "-X", "--format=State", f"--jobs={job}"]
    _eventually(lambda: lab.exec(recorded).stdout.strip() == "COMPLETED", 10)


def test_the_unicron_account_is_an_admin_and_people_are_not(lab: Lab) -> None:
    drain = ["scontrol", "update", "NodeName=n6", "State=DRAIN", "Reason=test"]
    with pytest.raises(LabError, match=r"Invalid user|denied"):
        lab.exec(drain, user="alice")
    lab.exec(drain, user="unicron")
    assert "DRAIN" in _state(lab, "n6")
    lab.exec(["scontrol", "update", "NodeName=n6", "State=UNDRAIN"], user="unicron")
    _eventually(lambda: _state(lab, "n6") == "IDLE", 5)


def test_every_node_has_its_own_tmp_and_all_share_home(lab: Lab) -> None:
    lab.exec(["touch", "/tmp/mine", "/dev/shm/mine", "/home/alice/ours"], user="alice", node="n1")
    seen = lab.exec(["ls", "/tmp", "/dev/shm", "/home/alice"], user="alice", node="n2").stdout
    assert "mine" not in seen
    assert "ours" in seen


def test_a_signal_hits_the_rank_that_was_named_and_no_other(lab: Lab) -> None:
    worker = "sleep 8 >/dev/null 2>&1 &"
    rank = f'export RANK=$SLURM_PROCID; {worker} exec python3 -c "import time; time.sleep(600)"'
    job = _submit(lab, f"srun --no-kill --kill-on-bad-exit=0 bash -c '{rank}'", "-N2", "-n2")
    _eventually(lambda: _runs_python(lab, "n1") and _runs_python(lab, "n2"), 10)
    stopped = lab.fault("stop-rank", job=job, rank=0)
    killed = lab.fault("kill-rank", job=job, rank=1)
    assert [(hit.node, hit.job, hit.rank) for hit in stopped.hits] == [("n1", job, 0)]
    assert [(hit.node, hit.job, hit.rank) for hit in killed.hits] == [("n2", job, 1)]
    assert "python3 -c" in killed.hits[0].command
    assert "State:\tT" in Path(f"/proc/{stopped.hits[0].pid}/status").read_text()
    _eventually(lambda: processes.read_process(killed.hits[0].pid) is None, 5)
    with pytest.raises(LabError, match="no such rank"):
        lab.fault("kill-rank", job=job, rank=1)


def test_kill_agent_hits_the_agent_of_one_node_and_not_its_guardian(lab: Lab) -> None:
    guardian = "if os.fork() == 0: os.closerange(0, 3); time.sleep(5); os._exit(0)"
    agent = f"import os, time\n{guardian}\ntime.sleep(600)\n"
    (_home(lab) / "agent.pyz").write_text(agent)
    job = _submit(lab, "srun --kill-on-bad-exit=0 python3 /home/alice/agent.pyz", "-N2", "-n2")
    _eventually(lambda: _runs_python(lab, "n2"), 10)
    killed = lab.fault("kill-agent", node="n2")
    assert [(hit.node, hit.job, hit.rank) for hit in killed.hits] == [("n2", job, None)]
    assert killed.hits[0].command.endswith("python3 /home/alice/agent.pyz")


def test_a_cut_cable_costs_only_that_node_and_a_no_kill_job_lives_on(lab: Lab) -> None:
    job = _submit(lab, "srun --no-kill sleep 600", "-N3", "--no-kill", "--output=/dev/null")
    _eventually(lambda: _state(lab, "n3") != "IDLE", 10)
    fell: set[str] = set()

    def n2_is_down() -> bool:
        down = {n.name for n in lab.status().nodes if "DOWN" in (n.slurm_state or "")}
        fell.update(down)
        return "n2" in down

    lab.fault("cut-link", node="n2")
    _eventually(n2_is_down, 75)
    assert fell == {"n2"}
    assert _job_state(lab, job) == "RUNNING"
    assert any(p.name == "sleep" and p.uid != 0 for p in _inside(lab, "n2")), "it lives on, unseen"
    lab.fault("restore-link", node="n2")
    _eventually(lambda: _state(lab, "n2") == "IDLE", 60)
    assert _job_state(lab, job) == "RUNNING"


def _runs_python(lab: Lab, node: str) -> bool:
    return any(process.name == "python3" for process in _inside(lab, node))


def _inside(lab: Lab, node: str) -> list[processes.Process]:
    return processes.living_in(processes.node_inits(lab.name)[node])


def _reaches(lab: Lab, node: str, host: str) -> bool:
    probe = f"import socket; socket.create_connection(('{host}', {_port(host)}), 1)"
    return lab.exec(["python3", "-c", probe], node=node, check=False).returncode == 0


def _port(host: str) -> int:
    return 6817 if host == "head" else 6818


def test_a_node_without_management_still_reaches_its_peers(lab: Lab) -> None:
    assert _reaches(lab, "n4", "head")
    lab.fault("cut-management", node="n4")
    assert not _reaches(lab, "n4", "head")
    assert _reaches(lab, "n4", "n5")
    assert _reaches(lab, "n5", "n4")
    assert _reaches(lab, "n5", "head")
    lab.fault("restore-management", node="n4")
    assert _reaches(lab, "n4", "head")


def test_a_node_without_power_has_no_process_and_comes_back_idle(lab: Lab) -> None:
    before = {process.pid for process in _inside(lab, "n5")}
    off = lab.fault("power-off", node="n5")
    assert "slurmd -N n5" in [hit.command for hit in off.hits]
    assert not [pid for pid in before if processes.read_process(pid) is not None]
    assert not next(n.powered for n in lab.status().nodes if n.name == "n5")
    lab.fault("power-on", node="n5")
    _eventually(lambda: _state(lab, "n5") == "IDLE", 20)
    assert _reaches(lab, "n4", "n5")


def test_a_slow_cable_is_slow_until_it_is_restored(lab: Lab) -> None:
    lab.fault("slow-link", node="n6", kilobit=800)
    assert _seconds_for_100_kilobytes(lab) > 0.7
    lab.fault("restore-link", node="n6")
    assert _seconds_for_100_kilobytes(lab) < 0.3


def _seconds_for_100_kilobytes(lab: Lab) -> float:
    """From n6 to n5: the listener says how long it took from the connection to the last byte."""
    listen = """import socket, time
listener = socket.create_server(("", 7000))
print("ready", flush=True)
connection, start = listener.accept()[0], time.monotonic()
while connection.recv(65536): pass
print(time.monotonic() - start)
"""
    send = "import socket; s = socket.create_connection(('n5', 7000)); s.sendall(bytes(100000))"
    with lab.popen(["python3", "-c", listen], node="n5") as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "ready\n"
        lab.exec(["python3", "-c", send], node="n6")
        return float(listener.stdout.readline())


def test_slurm_daemons_are_stopped_and_started_under_a_running_job(lab: Lab) -> None:
    job = _submit(lab, "srun sleep 600", "-N1", "-w", "n4")
    lab.fault("kill-slurmd", node="n4")
    lab.fault("stop-slurmctld")
    assert lab.exec(["squeue"], check=False).returncode != 0
    assert {n.slurm_state for n in lab.status().nodes} == {None}, "unknown, not gone"
    lab.fault("start-slurmctld")
    lab.fault("start-slurmd", node="n4")
    _eventually(lambda: lab.exec(["squeue"], check=False).returncode == 0, 15)
    assert _job_state(lab, job) == "RUNNING"


def test_unicrond_comes_back_after_it_is_killed_and_stays_down_on_demand(lab: Lab) -> None:
    program = lab.paths.inside("/opt/unicron/bin/unicrond")
    kept = program.read_text()
    program.write_text("#!/bin/sh\nsleep 601 & exec tail -f /dev/null\n")
    try:
        lab.start_unicrond()
        _eventually(lambda: lab.status().daemons["unicrond"], 5)
        first = lab.fault("kill-unicrond").hits[0]
        _eventually(lambda: processes.read_process(first.pid) is None, 5)
        _eventually(lambda: lab.status().daemons["unicrond"], 5)
        second = lab.fault("kill-unicrond", keep_down=True).hits[0]
        assert first.pid != second.pid
        time.sleep(1.5)
        assert not lab.status().daemons["unicrond"]
        left_by_it = ["pgrep", "-u", "unicron"]
        assert not lab.exec(left_by_it, check=False).stdout, "its group ends with it"
    finally:
        program.write_text(kept)


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("set-on-fire", {}, "no fault 'set-on-fire'; there are: kill-rank"),
        ("cut-link", {}, "which node"),
        ("cut-link", {"node": "n77"}, "'n77' is not in this lab, which has n1"),
        ("kill-rank", {"job": "999"}, "no such rank"),
        ("kill-unicrond", {}, "unicrond does not run"),
        ("start-slurmctld", {}, "runs already"),
        ("power-on", {"node": "n1"}, "has power already"),
        ("cut-link", {"host": "n1"}, "a fault's target has node, job"),
    ],
)
def test_a_fault_that_cannot_be_says_why(
    lab: Lab, kind: str, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(LabError, match=sentence):
        lab.fault(kind, **fields)


def _command_line(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lab", *arguments],
        cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_wrong_command_line_ends_with_2_and_a_sentence(lab: Lab) -> None:
    for arguments, sentence in [
        (("status", "--name", "nowhere"), "lab nowhere is not up"),
        (("up", "--name", "Bad Name"), "use a-z"),
        (("up", "--name", "e2e-none", "--nodes", "0"), "nodes is 0: choose a number from 1"),
        (("exec", "--name", lab.name, "--user", "eve", "--", "id"), "user 'eve' is not in the lab"),
        (("fault", "cut-link", "--name", lab.name), "which node"),
    ]:
        done = _command_line(*arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr
    done = _command_line(
        "exec", "--name", lab.name, "--user", "bob", "--", "sh", "-c", "id; exit 7"
    )
    assert done.returncode == 7
    assert "(bob)" in done.stdout


def test_up_tells_of_a_configuration_that_unicrond_refuses(tmp_path: Path) -> None:
    wrong = tmp_path / "unicron.toml"
    wrong.write_text('mode = "sometimes"\n')
    try:
        done = _command_line("up", "--name", "e2e-none", "--nodes", "1", "--config", str(wrong))
    finally:
        Lab("e2e-none").down()
    assert done.returncode == 2
    assert (
        "unicrond does not start: /etc/unicron/unicron.toml: mode: Input should be" in done.stderr
    )


@dataclass(frozen=True)
class Host:
    """What a lab could leave behind on the host."""

    mounts: str
    links: frozenset[str]
    etc: frozenset[tuple[str, int]]
    run: frozenset[str]


def _host() -> Host:
    etc = ((str(path), path.lstat().st_mtime_ns) for path in Path("/etc").rglob("*"))
    return Host(
        mounts=Path("/proc/self/mounts").read_text(),
        links=frozenset(entry.name for entry in Path("/sys/class/net").iterdir()),
        etc=frozenset(etc),
        run=frozenset(str(path) for path in Path("/run").rglob("*")),
    )


def _labs() -> list[str]:
    return [folder.name for folder in LABS.iterdir()] if LABS.exists() else []


def _pids(name: str) -> set[int]:
    head = processes.head_init(name)
    inside = [] if head is None else _descendants(head)
    return {process.pid for process in [*processes.carriers(name), *inside]}


def _descendants(root: int) -> list[processes.Process]:
    found, wanted = [], {root}
    for process in sorted(processes.every_process(), key=lambda p: p.pid):
        if process.parent in wanted:
            wanted.add(process.pid)
            found.append(process)
    return found


def _namespaces(pids: set[int]) -> set[str]:
    spaces = set()
    for pid in pids:
        for space in ("pid", "net", "mnt", "uts", "ipc"):
            try:
                spaces.add(str(Path(f"/proc/{pid}/ns/{space}").readlink()))
            except OSError:  # it ended meanwhile
                continue
    return spaces


def _nothing_is_left(name: str, pids: set[int], spaces: set[str]) -> None:
    assert not processes.carriers(name)
    assert not [pid for pid in pids if processes.read_process(pid) is not None]
    assert not spaces & _namespaces({p.pid for p in processes.every_process()})
    assert name not in _labs()
    assert name not in Path("/proc/self/mountinfo").read_text()


def test_two_labs_run_side_by_side_and_the_second_leaves_nothing(lab: Lab) -> None:
    before, own = _host(), _namespaces({os.getpid()})
    second = Lab("e2e-second")
    try:
        second.up(LabSpec(nodes=2, gpus_per_node=1))
        second.fault("power-off", node="n1")
        second.fault("cut-management", node="n2")
        assert second.exec(["hostname", "-I"], node="n2").stdout.strip() == "10.77.0.2"
        assert second.exec(["sinfo", "-h", "-o", "%D"]).stdout.strip() == "2"
        assert lab.exec(["sinfo", "-h", "-o", "%D"]).stdout.strip() == "6"
        during = _host()
        pids = _pids(second.name)
        spaces = _namespaces(pids) - own
        assert len(pids) > 8
        assert len(spaces) >= 10
    finally:
        second.down()
    _nothing_is_left(second.name, pids, spaces)
    assert during == before, "the host sees nothing of a lab but its processes and its files"
    assert _host() == before
    assert lab.exec(["sinfo", "-h", "-o", "%D"]).stdout.strip() == "6"


@pytest.mark.parametrize("seconds", [0.3, 0.5, 0.8, 1.2, 2.0, 3.5])
def test_an_up_that_is_killed_half_way_is_removed_by_down(seconds: float) -> None:
    name = "e2e-crash"
    before, own = _host(), _namespaces({os.getpid()})
    making = subprocess.Popen(
        [sys.executable, "-m", "lab", "up", "--name", name, "--nodes", "6", "--no-unicrond"],
        cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    time.sleep(seconds)
    making.send_signal(signal.SIGKILL)
    making.wait()
    pids = _pids(name)
    spaces = _namespaces(pids) - own
    Lab(name).down()
    _nothing_is_left(name, pids, spaces)
    assert _host() == before


def test_up_removes_what_a_killed_up_left() -> None:
    making = subprocess.Popen(
        [sys.executable, "-m", "lab", "up", "--name", "e2e-crash", "--nodes", "2"],
        cwd=CHECKOUT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _eventually(lambda: processes.node_inits("e2e-crash"), 20)
    making.kill()
    making.wait()
    left = processes.head_init("e2e-crash")
    assert left is not None
    again = Lab("e2e-crash")
    try:
        again.up(LabSpec(nodes=1))
        assert processes.read_process(left) is None
        assert _state(again, "n1") == "IDLE"
    finally:
        again.down()


def test_services_of_the_host_live_through_all_of_it(
    services_of_the_host: list[subprocess.Popen[bytes]],
) -> None:
    assert [process.poll() for process in services_of_the_host] == [None] * 6
