"""A process that has imported what the ranks of a node import, and forks new ranks.

It is started as a rank is, with the same command line: the interpreter, its options and the script
are the same. The start-up hook comes here, before the script: in the standby process `serve` never
returns; in each rank forked from it, it does, and the interpreter goes on to the script as ever.

    agent                        standby                              forked rank
    {imported, of_a_rank, ...} ->  imports, slowly
                               <-  {warm} or {unfit, why}
    {variables}, output, gate  ->  forks twice ───────────────────>  session, variables, output
                               <-  {pid}: it is the agent's child    waits
    a byte in the gate         ─────────────────────────────────-->  page, random numbers, script

A gate that is closed without a byte ends the rank: none runs that the agent does not know of.

Forking is sound while no other thread runs and nothing else is open, as threads, CUDA and process
groups have it. And a rank must not see whose variables were read while it was imported: reading one
that belongs to a rank, or one that the script changes, makes a package unfit.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from unicron import page
from unicron.imported import modules

# Its socket's descriptor, and room in the memory that /proc shows as a process's environment.
ROOM = "UNICRON_STANDBY_ROOM"
# With this torch asks NVML whether there is CUDA: asking CUDA makes a process unfit to be forked.
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
MESSAGE_BYTES = 128 << 10
REST = 1  # seconds without import for each second of it: the ranks need the processor
SLICE_SECONDS = 0.005
# Libraries read these as they are loaded, unseen by Python.
READ_AS_LOADED = ("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "NUMEXPR_", "LD_",
                  "MALLOC_", "TORCH_", "PYTORCH_", "PYTHON")  # fmt: skip
NAME = "unicron-standby"
_SET_PDEATHSIG = 1
_ENV_START = 47  # in /proc/self/stat behind the name, from 0
_OOM = Path("/proc/self/oom_score_adj")
_COMM = Path("/proc/self/comm")


def serve() -> None:
    """Returns in ranks that were forked, and nowhere else."""
    try:
        if _serve():
            return
    except BaseException:  # noqa: BLE001 - the script must not run in here, whatever happens
        traceback.print_exc()
    os._exit(1)


def _serve() -> bool:
    """True in a forked rank; False when the agent has gone, or nothing can be forked."""
    agent = socket.socket(fileno=int(os.environ.pop(ROOM).split()[0]))
    agent.set_inheritable(False)
    body = json.loads(agent.recv(MESSAGE_BYTES))
    begun = _Begun(int(body["agent"]))
    why = _import(body, begun)
    agent.send(json.dumps(why or {"warm": len(sys.modules)}).encode())
    if why:
        return False
    gc.collect()
    gc.freeze()  # what is never looked at by the collector stays shared
    while True:
        text, files, _, _ = socket.recv_fds(agent, MESSAGE_BYTES, 2)
        if not text:
            return False
        output, gate = files
        why_not = begun.unfit({output, gate})
        if why_not:
            answer = json.dumps({"refused": why_not}).encode()
        else:
            answer = _fork(begun, json.loads(text), output, gate)
            if not answer:
                agent.close()
                return True
        os.close(output)
        os.close(gate)
        agent.send(answer)


# ---------------------------------------------------------------- importing


def _import(body: Mapping[str, Any], begun: _Begun) -> dict[str, str]:
    """What the file named in `body` tells of a rank; empty, or `unfit` and `why`."""
    told = json.loads(Path(body["imported"]).read_text())
    before, rests, reads = set(sys.modules), _Rests(), _Reads(body["of_a_rank"])
    sys.meta_path.insert(0, rests)
    try:
        for name, origin in told["modules"].items():
            package = name.partition(".")[0]
            if package in body["without"] or name in sys.modules or not _is_library(name, origin):
                continue
            reads.package = package
            try:
                importlib.import_module(name)
            except Exception as error:  # noqa: BLE001 - a package may raise anything
                return {"unfit": package, "why": f"{name} cannot be imported before: {error!r}"}
            if why := reads.of_a_rank() or begun.unfit():
                return {"unfit": package, "why": why}
    finally:
        sys.meta_path.remove(rests)
        reads.end()
    return reads.changed(told["changed"]) or _of_others(told["modules"], before)


def _is_library(name: str, origin: str) -> bool:
    """Never the user's own: what is installed, and unicron."""
    installed = "/site-packages/" in origin or "/dist-packages/" in origin
    return installed or name.partition(".")[0] == "unicron"


def _of_others(told: Mapping[str, str], before: Collection[str]) -> dict[str, str]:
    """Modules that a rank has from another place, as from beside its script."""
    for name, origin in modules().items():
        if name not in before and told.get(name, origin) != origin:
            why = f"{name} is {origin} here and {told[name]} in a rank"
            return {"unfit": name.partition(".")[0], "why": why}
    return {}


class _Rests:
    """A finder that finds nothing, and takes its time. A lower priority would pass on to ranks,
    which could not raise it again."""

    def __init__(self) -> None:
        self._since = time.process_time()

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        took = time.process_time() - self._since
        if took > SLICE_SECONDS:
            time.sleep(REST * took)
            self._since = time.process_time()


class _Reads:
    """Which variables packages read while they are imported."""

    def __init__(self, of_a_rank: Collection[str]) -> None:
        self.package = ""
        self._by: dict[str, str] = {}
        self._of_a_rank = frozenset(of_a_rank)
        self._kind = kind = type(os.environ)
        noted = self._by

        class Watched(kind):  # type: ignore[misc, valid-type]
            def __getitem__(one, name: str) -> str:  # noqa: N805
                noted.setdefault(name, self.package)
                return str(super().__getitem__(name))

        os.environ.__class__ = Watched

    def end(self) -> None:
        os.environ.__class__ = self._kind

    def of_a_rank(self) -> str:
        read = self._of_a_rank & self._by.keys()
        return f"reads {min(read)} as it is imported" if read else ""

    def changed(self, changed: Mapping[str, str | None]) -> dict[str, str]:
        """Not what packages have set by themselves here too."""
        for name, value in changed.items():
            if name in self._of_a_rank or os.environ.get(name) == value:
                continue
            if name.startswith(READ_AS_LOADED):
                return {"unfit": "torch", "why": f"the program sets {name} itself"}
            if name in self._by:
                why = f"reads {name} as it is imported, which the program sets itself"
                return {"unfit": self._by[name], "why": why}
        return {}


# ---------------------------------------------------------------- forking


class _Begun:
    """What this process was before it imported anything; ranks are to be that again."""

    def __init__(self, agent_pid: int) -> None:
        self.agent_pid = agent_pid
        self._files = set(_files())
        self._room = _Room()
        self._nvml = os.environ.get(NVML)
        os.environ.setdefault(NVML, "1")
        self._name, self._adjusted = _read(_COMM), _read(_OOM)
        _write(_COMM, NAME)
        _write(_OOM, "1000")  # when memory runs out this goes first; ranks take it back
        self._policy = os.sched_getscheduler(0)
        if self._policy == os.SCHED_OTHER:
            _schedule(os.SCHED_BATCH)

    def unfit(self, known: Collection[int] = ()) -> str:
        """Why this process must not be forked; empty if it may."""
        if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
            return "has started threads"
        new = [file for number, file in _files().items() if number not in {*self._files, *known}]
        if new:
            return f"holds {new[0]}"
        cuda = sys.modules.get("torch.cuda")
        return "has initialized CUDA" if cuda is not None and cuda.is_initialized() else ""

    def restore(self, variables: Mapping[str, str]) -> None:
        self._room.write(variables)
        os.environ.update(variables)
        if self._nvml is None:
            del os.environ[NVML]
        _write(_COMM, self._name)
        _write(_OOM, self._adjusted)
        if self._policy == os.SCHED_OTHER:
            _schedule(os.SCHED_OTHER)


def _fork(begun: _Begun, order: Mapping[str, Any], output: int, gate: int) -> bytes:
    """The answer to the agent; empty in the rank. Forked twice, so that it is the agent's child."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        if os.fork():
            os._exit(0)
        os.close(reading)
        _become(begun, order["variables"], output, gate, writing)
        return b""
    os.close(writing)
    answer = os.read(reading, MESSAGE_BYTES)
    os.close(reading)
    os.waitpid(between, 0)
    return answer or json.dumps({"refused": "no process could be forked"}).encode()


def _become(
    begun: _Begun, variables: Mapping[str, str], output: int, gate: int, writing: int
) -> None:
    """A rank, as if the agent had started it; returns once the agent knows of it."""
    os.setsid()
    begun.restore(variables)
    cuda = sys.modules.get("torch.cuda")
    if getattr(cuda, "_is_in_bad_fork", bool)():
        os.write(writing, b'{"refused": "CUDA was asked for before"}')
        os._exit(1)
    os.write(writing, json.dumps({"pid": os.getpid()}).encode())
    os.close(writing)
    if os.read(gate, 1) == b"":
        os._exit(1)
    os.close(gate)
    for number in (1, 2):
        os.dup2(output, number)
    os.close(output)
    ctypes.CDLL(None).prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != begun.agent_pid:  # it died before that
        os._exit(1)
    mine = page.of_this_process()
    if mine is not None:
        mine.begin(variables[page.VARIABLE])
        mine.claim_if_free()
    if "numpy.random" in sys.modules:  # Python's own is seeded anew in every fork
        sys.modules["numpy.random"].seed()


def _files() -> dict[int, str]:
    """Open ones."""
    found = {}
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):  # that of the listing
            found[int(number)] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return found


class _Room:
    """Where /proc finds this process's variables; those of a rank fit in. Whoever asks after
    processes of a run looks there."""

    def __init__(self) -> None:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        name = f"\0{ROOM}=".encode()
        before, _, rest = Path("/proc/self/environ").read_bytes().partition(name)
        self._at = int(fields[_ENV_START]) + len(before) + 1
        self._size = len(ROOM) + 1 + len(rest.partition(b"\0")[0])

    def write(self, variables: Mapping[str, str]) -> None:
        text = b"\0".join(os.fsencode(f"{name}={value}") for name, value in variables.items())
        if len(text) > self._size:
            raise ValueError(f"{len(text)} bytes of variables do not fit in {self._size}")
        ctypes.memmove(self._at, text.ljust(self._size, b"\0"), self._size)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    """Where it is allowed: it is no more than a courtesy."""
    with contextlib.suppress(OSError):
        path.write_text(text)


def _schedule(policy: int) -> None:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, os.sched_param(0))
