"""What happens in the demo, act by act. It goes by what it sees, and each wait has a limit."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from demo.screen import Screen
from demo.verdict import Facts, Fault, RunFacts, resumed
from demo.watch import Part, Watch
from lab import Lab, LabSpec, processes
from unicrond.config import Settings
from unicrond.slurm.hostlist import expand

USER = "alice"
WRAPPER = "/opt/unicron/bin/unicron-run"
WARM_STEPS = 25  # train steps before the first fault, and between two
BROKEN_RANK = 1
SLOW_SECONDS = 1.0  # between two looks that cost more
# Up to this version Slurm fails a job whose batch host is back within seconds of its removal.
EARLY_RETURN_FAILS_UNTIL = (22, 5)
STAYS_AWAY_SECONDS = 30.0
SPEC = LabSpec(nodes=6, gpus_per_node=1, unicrond=True)

HEAVY = Part("heavy", weight=3, nodes=3, min_nodes=2, steps=320)
LIGHT = Part("light", weight=1, nodes=3, min_nodes=None, steps=320)
PARTS = (HEAVY, LIGHT)


class Play:
    """Needs a lab that is not up; whoever calls takes it down."""

    def __init__(self, lab: Lab, screen: Screen) -> None:
        self._lab = lab
        self._screen = screen
        self._faults = 0

    def perform(self) -> Facts:
        self._raise_lab()
        self._submit()
        kill = self._kill_a_rank()
        cut = self._cut_the_batch_host()
        crash, back_at = self._kill_unicrond()
        self._mend(cut)
        self._complete(cut)
        return self._facts(kill, cut, crash, back_at)

    def why(self, run_id: int, variables: dict[str, str]) -> str:
        asked = ["unicronctl", "why", str(run_id)]
        return self._lab.exec(asked, user=USER, env=variables).stdout.rstrip()

    # acts
    def _raise_lab(self) -> None:
        self._screen.say("lab", f"a Slurm cluster of {SPEC.nodes} nodes comes up on this machine")
        began = time.monotonic()
        self._lab.up(SPEC)
        version = "{}.{:02}".format(*self._version())
        self._screen.say(
            "lab",
            f"up after {time.monotonic() - began:.1f} s: Slurm {version} with its database, "
            f"{SPEC.nodes} nodes with a GPU each, and unicrond in mode active",
        )
        head = processes.head_init(self._lab.name)
        socket = Path(f"/proc/{head}/root{Settings().api_socket}")
        self._watch = Watch(self._screen, PARTS, socket, self._lab.paths.home / USER)
        self._watch.until(lambda: self._heard_at() > 0, 30, "unicrond answers")

    def _submit(self) -> None:
        for part in PARTS:
            self._screen.say(USER, _shown(part))
            self._watch.runs[part.name] = int(self._sbatch(part))
        self._until_trained(PARTS, WARM_STEPS, 120)

    def _kill_a_rank(self) -> Fault:
        node = self._rank_node(LIGHT, BROKEN_RANK)
        title = f"SIGKILL to rank {BROKEN_RANK} of {LIGHT.name} on {node}"
        target = {"job": str(self._run_id(LIGHT)), "rank": BROKEN_RANK}
        fault = self._inject("kill-rank", title, LIGHT, node, **target)
        self._until_resumed(fault)
        self._until_trained((LIGHT,), self._watch.reached(LIGHT.name) + WARM_STEPS, 60)
        return fault

    def _cut_the_batch_host(self) -> Fault:
        node = self._slurm_nodes(HEAVY)[0]
        title = f"cable of {node} pulled, batch host of {HEAVY.name}, with rank 0"
        fault = self._inject("cut-link", title, HEAVY, node)
        self._watch.until(lambda: self._healing(HEAVY), 60, f"unicrond heals {HEAVY.name}")
        return fault

    def _kill_unicrond(self) -> tuple[Fault, float]:
        title = "SIGKILL to unicrond in the middle of that heal"
        fault = self._inject("kill-unicrond", title, LIGHT, "")
        self._watch.until(lambda: self._heard_at() > fault.at, 60, "unicrond is back")
        return fault, self._heard_at()

    def _mend(self, cut: Fault) -> None:
        self._until_resumed(cut)
        self._screen.say("demo", f"{HEAVY.name} trains already; Slurm has yet to notice the cable")
        gone = f"Slurm takes {cut.node} from job {self._run_id(HEAVY)}"
        self._watch.until(lambda: cut.node not in self._slurm_nodes(HEAVY), 150, gone, SLOW_SECONDS)
        self._screen.say("lab", f"{gone}, {time.time() - cut.at:.0f} s after the cable was pulled")
        if self._version() <= EARLY_RETURN_FAILS_UNTIL:
            words = "30 s more: this Slurm fails a job whose batch host comes back sooner"
            self._screen.say("demo", words)
            self._watch.wait(STAYS_AWAY_SECONDS)
        self._lab.fault("restore-link", node=cut.node)
        self._screen.say("mended", f"the cable of {cut.node} is plugged in again")

    def _complete(self, cut: Fault) -> None:
        for part in PARTS:
            self._until_over(part)
        left = f"the end of what was left of {HEAVY.name} on {cut.node}"
        self._watch.until(lambda: self._processes(cut.node) == 0, 120, left, SLOW_SECONDS)
        words = f"nothing of {HEAVY.name} is left on {cut.node}; the node waits for a person"
        self._screen.say("demo", words)

    # what is done to the lab
    def _sbatch(self, part: Part) -> str:
        wrapped = [WRAPPER, *_wrapper_options(part), "--", *_program(part)]
        argv = ["sbatch", "--parsable", *_sbatch_options(part), *wrapped]
        return self._lab.exec(argv, user=USER).stdout.strip()

    def _inject(self, kind: str, title: str, part: Part, node: str, **target: Any) -> Fault:
        """`part`: the run that is hit, or for unicrond the bystander."""
        done = self._lab.fault(kind, node=node or None, **target)
        self._faults += 1
        self._screen.say(f"FAULT {self._faults}", title, done.wall_seconds)
        return Fault(self._faults, title, part.name, node, done.wall_seconds)

    # what is seen of it
    def _until_trained(self, parts: tuple[Part, ...], step: int, within_seconds: float) -> None:
        words = f"{' and '.join(part.name for part in parts)} reach train step {step}"
        self._watch.until(
            lambda: all(self._watch.reached(part.name) >= step for part in parts),
            within_seconds,
            words,
        )

    def _until_over(self, part: Part) -> None:
        words = f"{part.name} completes"
        self._watch.until(lambda: self._run(part).get("state") == "completed", 240, words)
        self._watch.until(
            lambda: _over(self._records(part)), 30, f"{words} in Slurm's records", SLOW_SECONDS
        )

    def _until_resumed(self, fault: Fault) -> None:
        steps = self._watch.logs[fault.run].steps
        words = f"{fault.run} trains again"
        self._watch.until(lambda: resumed(steps, fault.at)[0] is not None, 90, words)

    def _run_id(self, part: Part) -> int:
        return self._watch.runs[part.name]

    def _run(self, part: Part) -> dict[str, Any]:
        return self._watch.api.get(f"/runs/{self._run_id(part)}") or {}

    def _healing(self, part: Part) -> bool:
        return self._run(part).get("healing") is not None

    def _rank_node(self, part: Part, rank: int) -> str:
        return next(str(s["node"]) for s in self._run(part)["ranks"] if s["rank"] == rank)

    def _node(self, name: str) -> dict[str, Any]:
        return next((n for n in self._watch.api.items("/nodes") if n["name"] == name), {})

    def _processes(self, node: str) -> int:
        return next(n.processes for n in self._lab.status().nodes if n.name == node)

    def _heard_at(self) -> float:
        """When unicrond's loop last said that it is alive; 0 while nothing answers."""
        health = self._watch.api.get("/health") or {}
        age = health.get("loop_age_seconds")
        return 0.0 if age is None else time.time() - age

    def _version(self) -> tuple[int, int]:
        text = self._lab.exec(["sinfo", "--version"]).stdout
        year, month = re.findall(r"\d+", text)[:2]
        return int(year), int(month)

    def _slurm_nodes(self, part: Part) -> tuple[str, ...]:
        asked = ["squeue", "--noheader", f"--jobs={self._run_id(part)}", "--format=%N"]
        return expand(self._lab.exec(asked).stdout.strip())

    def _records(self, part: Part) -> list[tuple[str, str]]:
        asked = ["sacct", "-D", "-X", "-n", "-P", f"--jobs={self._run_id(part)}"]
        rows = self._lab.exec([*asked, "--format=State,ExitCode"]).stdout.splitlines()
        return [(state, code) for state, _, code in (row.partition("|") for row in rows)]

    def _facts(self, kill: Fault, cut: Fault, crash: Fault, back_at: float) -> Facts:
        return Facts(
            kill, cut, crash, back_at,
            runs={part.name: self._run_facts(part) for part in PARTS},
            incidents=self._incidents(),
            lost_node=self._node(cut.node),
        )  # fmt: skip

    def _run_facts(self, part: Part) -> RunFacts:
        run_id, steps = self._run_id(part), self._watch.logs[part.name].steps
        return RunFacts(run_id, part.steps, steps, self._records(part), self.why(run_id, {}))

    def _incidents(self) -> list[dict[str, Any]]:
        numbers = [item["incident_id"] for item in self._watch.api.items("/incidents")]
        return [self._incident(number) for number in numbers]

    def _incident(self, number: int) -> dict[str, Any]:
        story = self._watch.api.get(f"/incidents/{number}") or {}
        decided = [line["text"] for line in story.get("timeline", ()) if line["kind"] == "decision"]
        return {**story, "decision": decided[0] if decided else ""}


def _sbatch_options(part: Part) -> list[str]:
    return ["-J", part.name, f"-N{part.nodes}", "--gpus-per-node=1"]


def _wrapper_options(part: Part) -> list[str]:
    least = [] if part.min_nodes is None else ["--min-nodes", str(part.min_nodes)]
    return ["--weight", str(part.weight), *least]


def _program(part: Part) -> list[str]:
    return [
        *("python", "/opt/unicron/examples/train_plain.py", "--steps", str(part.steps)),
        *("--step-seconds", "0.3", "--log", f"{part.name}.jsonl"),
        *("--checkpoint-dir", f"{part.name}-checkpoints"),
    ]


def _shown(part: Part) -> str:
    """The user's command line, without the program's own options."""
    sbatch, wrapper = " ".join(_sbatch_options(part)), " ".join(_wrapper_options(part))
    return f"sbatch {sbatch} $(which unicron-run) {wrapper} -- python train_plain.py"


def _over(records: list[tuple[str, str]]) -> bool:
    return bool(records) and records[-1][0] not in ("RUNNING", "RESIZING", "COMPLETING")
