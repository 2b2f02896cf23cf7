"""A training that a measurement breaks: the same example under unicron-run in a lab, or torchrun.

What happened is read from the lines that the training itself writes, on the machine's one clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from bench.report import ROOT
from lab import Lab

USER = "alice"
LOOK_SECONDS = 0.02
START_SECONDS = 120.0


class MeasurementError(Exception):
    """What was to be measured did not happen."""


@dataclass(frozen=True)
class Step:
    """A train step that was completed, `at` Unix seconds."""

    number: int
    generation: int
    world_size: int
    at: float


class StepLog:
    """The example's lines; each look reads on where the last one ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.steps: list[Step] = []

    def look(self) -> list[Step]:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            self.steps += [_step(line) for line in whole.splitlines()]
        return self.steps

    def wait(self, wanted: Callable[[Step], bool], within_seconds: float) -> Step:
        """The first step that is wanted."""
        deadline = time.monotonic() + within_seconds
        seen = 0
        while time.monotonic() < deadline:
            fresh = self.look()[seen:]
            seen += len(fresh)
            if found := next(filter(wanted, fresh), None):
                return found
            time.sleep(LOOK_SECONDS)
        raise MeasurementError(f"{self._path.name}: no such train step within {within_seconds:g} s")

    def first_after(self, at: float, generation: int, within_seconds: float) -> Step:
        """The first step of a generation above this one."""
        return self.wait(lambda s: s.at > at and s.generation > generation, within_seconds)

    def more(self, count: int, within_seconds: float = 60.0) -> Step:
        """Waits for so many steps from now on; the last of them."""
        now = time.time()
        first = self.wait(lambda s: s.at > now, within_seconds)
        target = first.number + count - 1
        return self.wait(lambda s: s.at > now and s.number >= target, within_seconds)

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between steps that follow each other, for all of which one lies within."""
        pairs = zip(self.look(), self.steps[1:], strict=False)
        return [b.at - a.at for a, b in pairs if b.at > begin and a.at < end]


def _step(line: bytes) -> Step:
    body = json.loads(line)
    return Step(body["step"], body["generation"], body["world_size"], body["time"])


class Training(Protocol):
    log: StepLog

    def kill(self, rank: int) -> float:
        """SIGKILL for the main process of a rank; the moment before it."""


class UnderUnicron:
    """Submitted as an ordinary user; as many ranks as nodes. `nodes` 0: all of the lab. `elastic`:
    the same training in processes that regroup."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        options: list[str],
        example: list[str],
        nodes: int = 0,
        elastic: bool = False,
    ) -> None:
        folder = f"/home/{USER}/{name}"
        lab.exec(["mkdir", "-p", folder], user=USER)
        script = "train_unicron.py" if elastic else "train_plain.py"
        program = _program(f"/opt/unicron/examples/{script}", folder, example)
        program += ["--log", f"{folder}/steps.jsonl"]
        wrapped = ["/opt/unicron/bin/unicron-run", *options, "--", "python", *program]
        size = str(nodes or len(lab.status().nodes))
        sbatch = ["sbatch", "--parsable", "-N", size, "--gpus-per-node=1", "--output=job-%j.log"]
        self._lab = lab
        self.submitted_at = time.time()
        self.job = lab.exec([*sbatch, *wrapped], user=USER, folder=folder).stdout.strip()
        self.log = StepLog(lab.paths.inside(folder) / "steps.jsonl")
        self.first = self.log.wait(lambda _: True, START_SECONDS)

    @property
    def run_id(self) -> int:
        return int(self.job)

    def kill(self, rank: int) -> float:
        return self._lab.fault("kill-rank", job=self.job, rank=rank).wall_seconds

    def cancel(self) -> None:
        self._lab.exec(["scancel", self.job], user=USER)


class Torchrun:
    """torchrun on this machine, outside of any lab; settings as friendly to it as we know them."""

    def __init__(
        self, folder: Path, ranks: int, program: list[str], out: IO[str], errors: IO[str]
    ) -> None:
        options = [
            f"--nproc-per-node={ranks}", "--max-restarts=1000", "--monitor-interval=0.1",
            "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
        ]  # fmt: skip
        # The first: a restart may meet the dead process's address (pytorch issue 135712).
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1", "TZ": "UTC"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, *program],
            env={**os.environ, **settings}, stdout=out, stderr=errors, cwd=folder,
            start_new_session=True,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait(5)


class UnderTorchrun:
    def __init__(self, folder: Path, ranks: int, example: list[str]) -> None:
        program = _program(str(ROOT / "examples/train_plain.py"), str(folder), example)
        with (folder / "steps.jsonl").open("w") as out, (folder / "stderr").open("w") as errors:
            self._torchrun = Torchrun(folder, ranks, program, out, errors)
        self.end = self._torchrun.end
        self.log = StepLog(folder / "steps.jsonl")
        self.log.wait(lambda _: True, START_SECONDS)

    def kill(self, rank: int) -> float:
        pid = self._rank_process(rank)
        at = time.time()
        os.kill(pid, signal.SIGKILL)
        return at

    def _rank_process(self, rank: int) -> int:
        wanted = f"RANK={rank}".encode()
        for tasks in Path(f"/proc/{self._torchrun.pid}/task").iterdir():
            for pid in (tasks / "children").read_text().split():
                if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    return int(pid)
        raise MeasurementError(f"torchrun has no rank {rank}")


def _program(script: str, folder: str, example: list[str]) -> list[str]:
    return [script, *example, "--checkpoint-dir", f"{folder}/checkpoints"]
