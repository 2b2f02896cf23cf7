"""What an agent asks of Slurm while it runs: an answer, a requeue, another agent, the end."""

from __future__ import annotations

import asyncio
import ctypes
import glob
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.strenum import StrEnum

TIMEOUT_SECONDS = 10.0
SUBMIT_TIMEOUT_SECONDS = 30.0
PING_TIMEOUT_SECONDS = 4.0
# What comes after COMPLETING is not shown: a job that was cancelled would be brought back to life.
_HOLDING = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING", "STAGE_OUT", "CONFIGURING")
# Of the job these stay valid in a step of a step; of the step and the task they mislead srun.
_STEP_ONLY = re.compile(
    r"SLURM_(STEP|STEPID|PROCID|LOCALID|NODEID|TASK|GTIDS|NTASKS|NPROCS|LAUNCH|SRUN|CPU_BIND"
    r"|MEM_BIND|DISTRIBUTION|UMASK|PRIO|OVERCOMMIT|NNODES|JOB_NUM_NODES|GPUS|TRES).*|SRUN_.*"
)


async def _run(
    command: Sequence[str],
    timeout_seconds: float = TIMEOUT_SECONDS,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Exit code and all that was printed. Raises SlurmUnavailable."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment,
        )
    except OSError as error:
        raise SlurmUnavailable(f"{command[0]}: {error}") from error
    try:
        output, _ = await asyncio.wait_for(process.communicate(), timeout_seconds)
    except asyncio.TimeoutError:
        process.kill()
        await process.wait()
        words = f"{' '.join(command[:2])}: no answer in {timeout_seconds:g} s"
        raise SlurmUnavailable(words) from None
    assert process.returncode is not None
    return process.returncode, output.decode(errors="replace").strip()


async def answers() -> bool:
    """Whether slurmctld, first or backup, answers from here."""
    try:
        _, text = await _run(["scontrol", "ping"], PING_TIMEOUT_SECONDS)
    except SlurmUnavailable:
        return False
    return re.search(r"\bis UP\b", text) is not None


class Standing(StrEnum):
    """Of a node in one start of a job."""

    HELD = "held"
    TAKEN = "taken"  # the job goes on without it
    OVER = "over"  # the job has ended, or was requeued


async def standing(run_id: int, restarts: int, node: str) -> Standing:
    """Slurm's word. Raises SlurmUnavailable."""
    nodes = await _nodes_of(run_id, restarts)
    return Standing.OVER if not nodes else Standing.HELD if node in nodes else Standing.TAKEN


async def _nodes_of(run_id: int, restarts: int) -> list[str]:
    """Of this start of the job, none when it is over. Raises SlurmUnavailable."""
    code, text = await _run(["scontrol", "show", "job", "-o", str(run_id)])
    if "Invalid job id" in text:
        return []
    # asked for the job by whose id an array goes, Slurm shows all tasks of the array
    own = re.search(rf"^JobId={run_id} .*$", text, re.MULTILINE)
    record = own[0] if own else f" {text}"
    found = re.search(r"\sJobState=(\w+).*?\sRestarts=(\d+).*?\sNodeList=(\S*)", record)
    if code or not found:
        raise SlurmUnavailable(f"scontrol show job {run_id}: {text[-200:]}")
    state, count, nodes = found.groups()
    if state not in _HOLDING or int(count) != restarts:
        return []
    code, text = await _run(["scontrol", "show", "hostnames", nodes])
    if code:
        raise SlurmUnavailable(f"scontrol show hostnames {nodes}: {text[-200:]}")
    return text.split()


async def requeue(run_id: int, restarts: int, node: str, lost: Collection[str] = ()) -> None:
    """Unless it was requeued already, or is over, or goes on without this node: an agent that was
    cut off may know of none of it. Raises Refused or SlurmUnavailable, the latter also while the
    job has `lost` nodes: its requeue would wait until Slurm takes them, and Slurm 22.05 breaks the
    GPUs of a job that loses a node meanwhile."""
    nodes = await _nodes_of(run_id, restarts)
    if node not in nodes:
        return
    if waiting := sorted(set(nodes) & set(lost)):
        raise SlurmUnavailable(f"Slurm has not given up {', '.join(waiting)} yet")
    code, text = await _run(["scontrol", "requeue", subject(run_id, os.environ)])
    if code:
        raise Refused(f"scontrol requeue {run_id}: {text[-200:]}")


async def submit(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and words of sbatch. Raises SlurmUnavailable."""
    return await _run(command, SUBMIT_TIMEOUT_SECONDS, environment)


def subject(run_id: int, environment: Mapping[str, str]) -> str:
    """What to call our job in a command: by the id of an array Slurm means all of its tasks."""
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    ours = environment.get("SLURM_JOB_ID") == str(run_id)
    return f"{array}_{task}" if ours and array and task else str(run_id)


async def cancel(run_id: int) -> None:
    code, text = await _run(["scancel", subject(run_id, os.environ)])
    if code:
        raise Refused(f"scancel {run_id}: {text[-200:]}")


def spawn_command(node: str, log: Path, agent: Sequence[str], binds_cpus: bool) -> list[str]:
    return [
        "srun", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--export=ALL",
        "--mem=0", *(["--cpu-bind=none"] if binds_cpus else []),
        "-N1", "-n1", "--ntasks-per-node=1", "-w", node, f"--output={log}", "--open-mode=append",
        *agent,
    ]  # fmt: skip


def spawn_environment(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in environment.items() if not _STEP_ONLY.fullmatch(k)}
    return {**kept, "UNICRON_SPAWNED": "1"}


def spawn(node: str, log: Path, agent: Sequence[str], binds_cpus: bool) -> subprocess.Popen[bytes]:
    """Starts an agent on another node; it does not end with this one. Raises SlurmUnavailable."""
    return start(spawn_command(node, log, agent, binds_cpus), spawn_environment(os.environ))


def start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """It does not end with this process. Raises SlurmUnavailable."""
    try:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise SlurmUnavailable(f"srun: {error}") from error


_LIBRARIES = (
    "libslurm.so",
    "/usr/lib/*/libslurm.so.*",
    "/usr/lib/*/slurm-wlm/libslurmfull.so",
    "/usr/lib64/libslurm.so.*",
    "/usr/lib64/slurm/libslurmfull.so",
)
# 26.05 (library 45) takes a structure where older versions take a number. What 25.11 (44) takes was
# not tried; a number that it reads as a structure would crash it, the reverse is only refused.
_STEP_ID_SINCE = 44
_UNSET = 0xFFFFFFFE


class _StepId(ctypes.Structure):
    _fields_ = (
        ("sluid", ctypes.c_uint64),
        ("job_id", ctypes.c_uint32),
        ("step_het_comp", ctypes.c_uint32),
        ("step_id", ctypes.c_uint32),
    )


def _library() -> ctypes.CDLL:
    prefix = Path(shutil.which("scontrol") or "/usr/bin/scontrol").resolve().parent.parent
    own = (f"{prefix}/lib*/libslurm.so", f"{prefix}/lib*/slurm/libslurmfull.so")
    for pattern in own + _LIBRARIES:
        for path in glob.glob(pattern) if "/" in pattern else [pattern]:  # noqa: PTH207
            try:
                library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
                library.slurm_complete_job  # noqa: B018 - is it there?
            except (OSError, AttributeError):
                continue
            return library
    raise Refused("no libslurm with slurm_complete_job found")


def complete(run_id: int, exit_code: int) -> None:
    """Ends a job that lost its batch host, with an exit code of its own; only its owner may.
    Raises Refused. It blocks, and calls foreign code: to be the last thing an agent does."""
    library = _library()
    library.slurm_init(None)
    library.slurm_api_version.restype = ctypes.c_long
    subject: object = ctypes.c_uint32(run_id)
    if library.slurm_api_version() >> 16 >= _STEP_ID_SINCE:
        subject = ctypes.byref(_StepId(0, run_id, _UNSET, _UNSET))
    if library.slurm_complete_job(subject, ctypes.c_uint32(exit_code << 8)):
        library.slurm_strerror.restype = ctypes.c_char_p
        why = library.slurm_strerror(library.slurm_get_errno())
        raise Refused(f"slurm_complete_job: {(why or b'').decode()}")
