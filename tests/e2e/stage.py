"""What end-to-end tests play on: the lab, runs submitted as a user would, and what came of them.

Everything is judged from outside: lines that ranks wrote, Slurm's word, unicrond's API.
"""

from __future__ import annotations

import http.client
import json
import re
import shlex
import shutil
import socket
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lab import Lab, LabSpec, processes

HERE = Path(__file__).resolve().parent
NODES = tuple(f"n{number}" for number in range(1, 7))
GPUS = 2  # a node has; most runs start one rank a node all the same
LOCKSTEP = "python3 /opt/unicron/e2e/lockstep.py"
EXAMPLE = "python /opt/unicron/examples/train_plain.py"
UNICRON_TOML = """mode = "active"
database_url = "sqlite:////var/lib/unicron/unicron.db"
agent_listen = "10.77.0.254:7717"
[policy]
drains_per_hour = 1000
returns_per_hour = 1000
return_settle_seconds = 12
regrow_seconds = 20
quarantine_seconds = 12
"""
AGENT_CONF = "[agent]\nunicrond = 10.77.0.254:7717\n"
PATIENCE_SECONDS = 60.0
OBSERVED = ("straggler", "slow-down", "NaN/loss spike")


def until(what: str, condition: Callable[[], Any], within_seconds: float = PATIENCE_SECONDS) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + within_seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {within_seconds:g} s: {what}"
        time.sleep(0.15)


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S.%f")[:-3]


@dataclass(frozen=True)
class Step:
    """A line that one rank wrote."""

    step: int
    rank: int
    world: int
    generation: int
    node: str
    pid: int
    time: float


@dataclass
class Stage:
    name: str
    lab: Lab = field(init=False)
    socket: str = "run/unicron/unicrond.sock"  # of the API that is asked

    def __post_init__(self) -> None:
        self.lab = Lab(self.name)

    # life
    def up(self) -> None:
        toml = UNICRON_TOML
        self.lab.up(LabSpec(nodes=len(NODES), gpus_per_node=GPUS, unicron_toml=toml, unicrond=True))
        programs = self.lab.paths.inside("/opt/unicron/e2e")
        programs.mkdir()
        for name in ("lockstep.py", "impostor.py", "nuisance.py"):
            shutil.copy(HERE / name, programs)
        until("unicrond answers", lambda: self.health().get("slurm") == "ok")

    def down(self) -> None:
        self.lab.down()

    def stop_unicrond(self) -> None:
        """As a stop of the service does; nobody is there when it returns."""
        self.lab.stop_unicrond()
        assert self.unicrond_pid() is None
        assert self.health() == {}

    def make_whole(self) -> None:
        """Mends whatever the test before broke."""
        self.agent_conf()
        status = self.lab.status()
        if not status.daemons["slurmctld"]:
            self.lab.fault("start-slurmctld")
        if not status.daemons["unicrond"]:
            self.lab.start_unicrond()
        for node in status.nodes:
            self._mend(node.name, node.powered, node.slurmd)
        self.cancel_all()
        until("every node is idle", self._idle)
        until("no process is left", lambda: not any(map(self.processes_of_users, NODES)))
        until("unicrond answers", lambda: self.health().get("slurm") == "ok")
        self.set_mode("active")
        self.set_plans(False)

    def set_plans(self, carried_out: bool) -> None:
        """Else a run is resized by nobody but the test."""
        verb, wanted = "unpause" if carried_out else "pause", {"scope": "action", "value": "plan"}
        status, answer = self._ask("POST", f"/v1/{verb}", {**wanted, "why": "a test"})
        assert status == 200, answer

    def _mend(self, node: str, powered: bool, slurmd: bool) -> None:
        if not powered:
            self.lab.fault("power-on", node=node)
            return
        self.lab.fault("restore-link", node=node)
        self.lab.fault("restore-management", node=node)
        if not slurmd:
            self.lab.fault("start-slurmd", node=node)

    def _idle(self) -> bool:
        states = self.node_states()
        for node, state in states.items():
            if state.startswith(("DOWN", "IDLE*", "UNKNOWN")) or "DRAIN" in state:
                self.return_to_service(node)
        return set(states.values()) == {"IDLE"} and len(states) == len(NODES)

    def return_to_service(self, node: str) -> None:
        """As a person does with a node that is repaired: slurmd anew, which tells slurmctld at once
        that it is there, and no reason against it any more."""
        if "NOT_RESPONDING" in (state := self.node_states()[node]) or "*" in state:
            self.lab.fault("kill-slurmd", node=node)
            until("slurmd is gone", lambda: not self._runs(node, "slurmd"))
            self.lab.fault("start-slurmd", node=node)
            until("slurmctld hears it", lambda: "NOT_RESP" not in self.node_states()[node])
        verb = "RESUME" if state.startswith("DOWN") else "UNDRAIN"
        self.lab.exec(["scontrol", "update", f"NodeName={node}", f"State={verb}"], check=False)

    def cancel_all(self) -> None:
        for user in ("alice", "bob"):
            self.lab.exec(["scancel", f"--user={user}"])
        until("no job is left", lambda: not self.squeue())

    # configuration
    def agent_conf(self, **values: float | str) -> None:
        """Of agents that start from now on."""
        lines = "".join(f"{key} = {value}\n" for key, value in values.items())
        self.lab.paths.inside("/etc/unicron/agent.conf").write_text(AGENT_CONF + lines)

    def set_mode(self, mode: str) -> None:
        status, answer = self._ask("POST", "/v1/mode", {"mode": mode, "why": "a test"})
        assert status == 200, answer
        until(f"mode {mode}", lambda: self.health().get("mode") == mode)

    # Slurm
    def scontrol(self, *words: str) -> str:
        return self.lab.exec(["scontrol", *words]).stdout

    def squeue(self) -> str:
        return self.lab.exec(["squeue", "--noheader", "--format=%i %T %N"]).stdout.strip()

    def node_states(self) -> dict[str, str]:
        return dict(
            re.findall(r"NodeName=(\S+) .*?\bState=(\S+)", self.scontrol("show", "node", "-o"))
        )

    def reason(self, node: str) -> str:
        """Why Slurm's node is drained or down, "" when it is neither."""
        found = re.search(r"Reason=(.*?)( \[|$)", self.scontrol("show", "node", "-o", node).strip())
        return found[1] if found else ""

    def reasons(self) -> dict[str, str]:
        return {node: reason for node in NODES if (reason := self.reason(node))}

    # processes
    def _runs(self, node: str, name: str) -> bool:
        return any(p.name == name for p in self.inside(node))

    def inside(self, node: str) -> list[processes.Process]:
        return processes.living_in(processes.node_inits(self.name)[node])

    def is_agent(self, process: processes.Process) -> bool:
        """Not srun, which speaks of it too, nor the guardian, its child."""
        mine = "agent.pyz" in " ".join(process.arguments) and process.name.startswith("python")
        parent = processes.read_process(process.parent)
        return mine and "agent.pyz" not in " ".join(parent.arguments if parent else ())

    def environment(self, process: processes.Process) -> dict[str, str]:
        return processes.environment(process.pid)

    def processes_of_users(self, node: str) -> list[str]:
        return [" ".join(p.arguments)[:120] for p in self.inside(node) if p.uid > 60920]

    # unicrond
    def api(self, path: str, **parameters: Any) -> dict[str, Any]:
        """Empty while nobody answers, or the thing is not known."""
        query = urllib.parse.urlencode(parameters)
        try:
            status, body = self._ask("GET", f"/v1/{path}?{query}")
        except OSError:
            return {}
        return body if status == 200 else {}

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        """Over the head's own socket, as root of the head; without a process in between."""
        connection = http.client.HTTPConnection("unicrond")
        with socket.socket(socket.AF_UNIX) as connection.sock:
            connection.sock.settimeout(10)
            connection.sock.connect(f"/proc/{processes.head_init(self.name)}/root/{self.socket}")
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def health(self) -> dict[str, Any]:
        return self.api("health")

    def unicrond_pid(self) -> int | None:
        head = processes.head_init(self.name)
        assert head is not None
        daemon = [p.pid for p in processes.living_in(head) if "unicrond.daemon" in p.arguments]
        return daemon[0] if daemon else None

    # runs
    def submit(
        self,
        program: str,
        *wishes: str,
        nodes: int = 3,
        user: str = "alice",
        ranks_per_node: int | None = 1,
        options: tuple[str, ...] = (),
    ) -> Training:
        """As a person does: sbatch with the wrapper as the batch script."""
        folder = f"/home/{user}/{time.monotonic_ns()}"
        self.lab.exec(["mkdir", folder], user=user)
        ranks = [] if ranks_per_node is None else [f"--ranks-per-node={ranks_per_node}"]
        command = [
            "sbatch", "--parsable", f"-N{nodes}", f"--gpus-per-node={GPUS}", *options,
            "/opt/unicron/bin/unicron-run", *wishes, *ranks, "--", *shlex.split(program),
        ]  # fmt: skip
        job = self.lab.exec(command, user=user, folder=folder).stdout.strip()
        return Training(self, int(job), self.lab.paths.inside(folder))

    def submit_script(self, script: str, *options: str) -> Training:
        """A batch script of alice's own, for one node."""
        folder = f"/home/alice/{time.monotonic_ns()}"
        self.lab.exec(["mkdir", folder], user="alice")
        command = ["sbatch", "--parsable", "-N1", f"--gpus-per-node={GPUS}", *options]
        done = self.lab.exec(command, user="alice", folder=folder, text_in=script)
        return Training(self, int(done.stdout), self.lab.paths.inside(folder))

    def training(self, program: str = LOCKSTEP, *wishes: str, **options: Any) -> Training:
        """A run that is under way, as unicrond knows too."""
        training = self.submit(program, *wishes, **options)
        training.until_step(6)
        until("unicrond sees it running", lambda: training.run().get("state") == "running")
        return training


@dataclass
class Training:
    stage: Stage
    job: int
    folder: Path

    # what its ranks wrote
    def steps(self) -> list[Step]:
        try:
            lines = (self.folder / "steps.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Step(**json.loads(line)) for line in lines]

    def generations(self) -> list[int]:
        return sorted({step.generation for step in self.steps()})

    def newest(self) -> Step | None:
        return max(self.steps(), key=lambda s: (s.generation, s.step), default=None)

    def until_step(self, step: int, generation: int = 0, within_seconds: float = 60) -> Step:
        """Until rank 0 of this generation or a newer one came to the step."""

        def come() -> Step | None:
            newest = self.newest()
            enough = newest and newest.step >= step and newest.generation >= generation
            return newest if enough else None

        found: Step = self.until(f"step {step} of generation {generation}", come, within_seconds)
        return found

    def goes_on(self, generation: int = 0, within_seconds: float = 60) -> Step:
        """Until three more steps of this generation or a newer one are complete."""
        begun = self.until(
            f"generation {generation}",
            lambda: (n := self.newest()) and n.generation >= generation and n,
            within_seconds,
        )
        return self.until_step(begun.step + 3, begun.generation, within_seconds)

    def of(self, generation: int) -> list[Step]:
        return [step for step in self.steps() if step.generation == generation]

    def checkpoint(self) -> dict[str, int]:
        found: dict[str, int] = json.loads((self.folder / "checkpoint.json").read_text())
        return found

    def agent_log(self, node: str) -> str:
        path = self.folder / f"unicron-{self.job}/agent-{node}.log"
        return path.read_text() if path.exists() else ""

    def output(self) -> str:
        """The job's usual output file."""
        path = self.folder / f"slurm-{self.job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    # what Slurm says
    def slurm(self, key: str) -> str:
        shown = self.stage.scontrol("show", "job", "-o", str(self.job))
        found = re.search(rf"\b{key}=(\S*)", shown)
        assert found, f"no {key} in {shown}"
        return found[1]

    def state(self) -> str:
        return self.slurm("JobState")

    def nodes(self) -> list[str]:
        """Of the allocation, as Slurm has it."""
        folded = self.slurm("NodeList")
        return self.stage.scontrol("show", "hostnames", folded).split()

    def ends(self, state: str, within_seconds: float = 60) -> None:
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.until("the end of the job", lambda: self.state() in ended, within_seconds)
        assert self.state() == state, self.story()

    # what unicrond says
    def run(self) -> dict[str, Any]:
        return self.stage.api(f"runs/{self.job}")

    def agent(self, node: str) -> dict[str, Any]:
        """As unicrond knows it."""
        agents = self.run().get("agents", [])
        unknown = {"connected": False, "last_heard": 0.0}
        return next((a for a in agents if a["node"] == node), unknown)

    def incidents(self) -> list[dict[str, Any]]:
        """The oldest first; not that it was slow, which a busy machine may make it."""
        items = self.stage.api("incidents", run_id=self.job).get("items", [])
        return [item for item in items if item["kind"] not in OBSERVED][::-1]

    def observed(self) -> list[dict[str, Any]]:
        """What people are told of, and nothing else follows from."""
        items = self.stage.api("incidents", run_id=self.job)["items"]
        return [item for item in items if item["kind"] in OBSERVED]

    def heals(self, within_seconds: float = 60) -> dict[str, Any]:
        """Until no incident of the run is open; the newest."""

        def closed() -> dict[str, Any] | None:
            found = self.incidents()
            done = found and all(i["state"] in ("resolved", "closed") for i in found)
            return found[-1] if done else None

        healed: dict[str, Any] = self.until("the incident is closed", closed, within_seconds)
        return healed

    def actions(self) -> list[dict[str, Any]]:
        return [
            act
            for incident in self.incidents()
            for act in self.stage.api(f"incidents/{incident['incident_id']}")["actions"]
        ]

    def kinds(self) -> set[str]:
        """Of the actions that were decided for it."""
        return {act["kind"] for act in self.actions()}

    def story(self) -> str:
        lines = self.stage.api(f"why/{self.job}", limit=1000).get("lines", [])
        return "\n".join(f"{clock(line['at'])} {line['kind']}: {line['text']}" for line in lines)

    # what is done to it
    def finish(self) -> None:
        """Its ranks end with 0 at the next step."""
        (self.folder / "finish").touch()

    def kill_rank(self, rank: int) -> None:
        self.stage.lab.fault("kill-rank", job=str(self.job), rank=rank)

    def until(
        self, what: str, condition: Callable[[], Any], within_seconds: float = PATIENCE_SECONDS
    ) -> Any:
        try:
            return until(what, condition, within_seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._told()}") from None

    def _told(self) -> str:
        logs = [(node, self.agent_log(node).splitlines()[-15:]) for node in NODES]
        tails = [f"--- agent {node}\n" + "\n".join(lines) for node, lines in logs if lines]
        return "\n".join(
            ["--- squeue", self.stage.squeue(), "--- why", self.story(), *tails, "--- output",
             self.output()[-1500:]]
        )  # fmt: skip
