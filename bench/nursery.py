"""Python processes that have torch imported already: forked from one that has done nothing else.

`python -m bench.nursery` reads a line of JSON for each: `environment`, `command` (a script and its
arguments), `output` (a file); it answers `{pid}`, and `{pid, code}` as one ends. `Nursery` is the
other end. May touch: processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WARM = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo")
WARM_UNICRON = ("unicron.generations", "unicron.gloo", "unicron.loop", "unicron.warm")
ANSWER_SECONDS = 120.0


class Child:
    """As subprocess.Popen has it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, seconds: float) -> int | None:
        self.ended.wait(seconds)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.nursery"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._children: dict[int, Child] = {}
        self._born: list[Child] = []
        self._news = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, command: Sequence[str], environment: Mapping[str, str], output: Path) -> Child:
        assert self._process.stdin is not None
        output.touch()
        body = {"command": list(command), "environment": dict(environment), "output": str(output)}
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        with self._news:
            if not self._news.wait_for(lambda: self._born, ANSWER_SECONDS):
                raise TimeoutError("no process was forked")
            return self._born.pop()

    def close(self) -> None:
        for child in list(self._children.values()):
            child.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            with self._news:
                if "code" in said:
                    child = self._children[said["pid"]]
                    child.returncode = said["code"]
                    child.ended.set()
                else:
                    self._children[said["pid"]] = Child(said["pid"])
                    self._born.append(self._children[said["pid"]])
                self._news.notify_all()


def _tell(**body: Any) -> None:
    print(json.dumps(body), flush=True)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def _become(order: Mapping[str, Any]) -> None:
    """The child's life; it does not come back."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    out = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(number, target)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["command"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115 - for the life of the process
    runpy.run_path(sys.argv[0], run_name="__main__")


def main() -> None:
    for name in (*WARM, *WARM_UNICRON):
        __import__(name)
    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, awake], [], [])
        if awake in ready:
            os.read(awake, 4096)
            _reap()
        if 0 not in ready:
            continue
        more = os.read(0, 1 << 20)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        for line in lines:
            pid = os.fork()
            if pid == 0:
                _become(json.loads(line))
                return
            _tell(pid=pid)


if __name__ == "__main__":
    main()
