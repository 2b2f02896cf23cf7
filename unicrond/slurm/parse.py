"""Text of `scontrol --oneliner show node|job` to nouns. Pure; Slurm 22.05 to 26.05.

A record is one line of Key=value pairs, unquoted: a value ends where ` Key=` of another field
begins. A job's owner writes some values (name, comment, paths) and may put ` UserId=root(0)` into
them, so a key that we trust and that stands twice makes the record unknown, as does a job id that
two lines claim. A line break in a value may forge a whole record, which no parser can see: so who
reads asks Slurm in another way which jobs there are (listing.py).
Unknown is a state of its own with its trouble in words: never gone, never healthy.
Times are read as UTC: the command runs with TZ=UTC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from unicrond.model.cluster import Allocation, JobState, Node, NodeState
from unicrond.slurm.hostlist import BadHostlist, expand

OUR_REASON = "unicron: "  # every reason of ours starts so; Slurm may append to it
NO_JOBS = "No jobs in the system"
SLURMD_PORT = 6818

_NODE_KEY = re.compile(
    r"(?:^|\s)(NodeName|Gres|NodeAddr|NodeHostName|Port|OS|State|ThreadsPerCore|Partitions|BootTime"
    r"|CfgTRES|AllocTRES|Reason|Comment|Extra|InstanceId|InstanceType)="
)
_REASON = re.compile(r"(.*?)(?: \[([^\[\]@]*)@[^\[\]]*\])?", re.DOTALL)

# Trusted keys, and those that end a value with blanks in it (JobName, Comment).
_TRUSTED = (
    "JobId|JobName|UserId|Account|JobState|Reason|Restarts|SubmitTime|StartTime|EndTime|TimeLimit"
    "|Partition|NodeList|BatchHost|ExcNodeList|NumNodes|NumTasks|TRES|ReqTRES|AllocTRES"
    "|OverSubscribe|TresPerJob|TresPerNode|TresPerTask|Comment"
)
_ENDING = (
    "HetJobIdSet|GroupId|Dependency|AllocNode:Sid|ReqNodeList|NumCPUs|Command|SubmitLine|WorkDir"
    "|AdminComment|SystemComment|StdErr|StdIn|StdOut|BatchFlag|Power|MailUser|Network|Extra"
    "|Features|Licenses|Contiguous|Requeue|RunTime|TimeMin|Deadline|ArrayJobId|ArrayTaskId"
)
_JOB_KEY = re.compile(rf"(?:^|\s)({_TRUSTED}|{_ENDING})=")
_TRUSTED_KEY = re.compile(_TRUSTED)

_GPU = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::([^:,(=]+))?(?:[:=](\d+))?(?=[,(]|$)")
_OWNER = re.compile(r"(.+)\((\d+)\)", re.DOTALL)
_LIMIT = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)")
_NEVER = ("", "(null)", "Unknown", "None", "N/A", "n/a")

JOB_STATES = {
    **{state.name: state for state in JobState},
    "CONFIGURING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "STAGE_OUT": JobState.COMPLETING,
    "REQUEUED": JobState.COMPLETING,
    "STOPPED": JobState.SUSPENDED,
    "REQUEUE_HOLD": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "BOOT_FAIL": JobState.NODE_FAIL,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "DEADLINE": JobState.TIMEOUT,
    "REVOKED": JobState.CANCELLED,
}
_DOWN = frozenset({"DOWN", "ERROR"})
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "INVALID_REG"})
_UNHEARD = frozenset(
    {"NOT_RESPONDING", "NO_RESPOND", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN",
     "POWER_UP", "REBOOT_ISSUED"}
)  # fmt: skip
_UP = frozenset({"IDLE", "ALLOCATED", "MIXED", "COMPLETING"})


class BadRecord(ValueError):  # noqa: N818 - reads as what it is
    """A line that is not what Slurm prints; the message says where."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """What a text said of nodes, and why some of it stays unknown."""

    known: Mapping[str, Node]
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Jobs:
    """What a text said of jobs, those without GPUs too, and why some of it stays unknown."""

    known: Mapping[int, Allocation]
    troubles: tuple[str, ...] = ()
    shown_twice: frozenset[int] = frozenset()  # one of each is forged


def parse_nodes(text: str, slurmd_port: int = SLURMD_PORT) -> Nodes:
    """`slurmd_port`: the cluster's default, which records leave out."""
    known: dict[str, Node] = {}
    troubles: list[str] = []
    for line in _records(text, "NodeName="):
        fields, _ = _fields(_NODE_KEY, line)
        name = _token(fields, "NodeName")
        try:
            known[name] = _node(name, fields, slurmd_port)
        except BadRecord as error:
            troubles.append(f"node {name}: {error}")
            known[name] = Node(name, NodeState.UNKNOWN, raw_state="")
    return Nodes(known, tuple(troubles))


def parse_jobs(text: str, nodes: Mapping[str, Node]) -> Jobs:
    """`nodes` tell whether a job has all GPUs of its nodes."""
    known: dict[int, Allocation] = {}
    troubles: list[str] = []
    twice: set[int] = set()
    for line in _records(text, "JobId="):
        fields, repeated = _fields(_JOB_KEY, line)
        job_id = _token(fields, "JobId")
        if not job_id.isdecimal():
            troubles.append(f"job {job_id[:20]}: not a number")
            continue
        if int(job_id) in known:
            twice.add(int(job_id))
        try:
            known[int(job_id)] = _job(fields, repeated, known, nodes)
        except BadRecord as error:
            troubles.append(f"job {job_id}: {error}")
            known[int(job_id)] = unknown_job(int(job_id))
    return Jobs(known, tuple(troubles), frozenset(twice))


def unknown_job(job_id: int) -> Allocation:
    """All that is known is that there is one. No user has the uid -1."""
    return Allocation(job_id, "", "", -1, "", "", JobState.UNKNOWN, (), "", gpus=0)


def own_record(text: str, job_id: int) -> str:
    """Asked for the job by whose id an array goes, Slurm shows all tasks of the array."""
    own = [record for record in _records(text, "JobId=") if record.startswith(f"JobId={job_id} ")]
    return "\n".join(own) or text


def subject(record: str, job_id: int) -> str:
    """What to call the job in a command: by the id of an array Slurm means all of its tasks."""
    task = re.match(rf"JobId={job_id} ArrayJobId=(\d+) ArrayTaskId=(\d+) ", record)
    return f"{task[1]}_{task[2]}" if task else str(job_id)


def excluded_nodes(text: str) -> tuple[str, ...]:
    """Of one job's record; raises BadRecord."""
    fields, repeated = _fields(_JOB_KEY, text)
    if "ExcNodeList" in repeated:
        raise BadRecord("ExcNodeList stands twice")
    return _names(_value(fields, "ExcNodeList"))


def slurmd_port(config: str) -> int:
    """SlurmdPort of `scontrol show config`, Slurm's default where it is not told."""
    match = re.search(r"^SlurmdPort\s*=\s*(\d+)", config, re.MULTILINE)
    return int(match[1]) if match else SLURMD_PORT


def gpus(text: str) -> int:
    """GPUs in a Gres, Tres or TresPer... text; the count of all types goes before those of each."""
    plain, typed = 0, 0
    for kind, count in _GPU.findall(text):
        if kind and (count or not kind.isdecimal()):
            typed += int(count or 1)
        else:
            plain += int(count or kind or 1)
    return plain or typed


def gpu_type(text: str) -> str:
    """The type of a node's GPUs, "" where none is named."""
    return next((kind for kind, _ in _GPU.findall(text) if kind and not kind.isdecimal()), "")


def _records(text: str, start: str) -> Iterator[str]:
    """Lines; one that begins no record goes on with the last (a value with a line break in it)."""
    record = ""
    for line in text.split("\n"):
        if line.startswith(start):
            if record:
                yield record
            record = line
        elif record:
            record += f"\n{line}"
    if record:
        yield record


def _fields(key: re.Pattern[str], line: str) -> tuple[dict[str, str], set[str]]:
    """First value of each key, and the keys that stand more than once."""
    parts = key.split(line)
    fields: dict[str, str] = {}
    repeated: set[str] = set()
    for name, value in zip(parts[1::2], parts[2::2], strict=True):
        if name in fields:
            repeated.add(name)
        else:
            fields[name] = value
    return fields, repeated


def _token(fields: Mapping[str, str], key: str) -> str:
    """A value that has no blanks; what follows is a field that we do not know."""
    words = fields.get(key, "").split(maxsplit=1)
    return words[0] if words and not fields[key][0].isspace() else ""


def _value(fields: Mapping[str, str], key: str) -> str:
    token = _token(fields, key)
    return "" if token in _NEVER else token


def _required(fields: Mapping[str, str], key: str) -> str:
    if key not in fields:
        raise BadRecord(f"{key} is missing")
    return _token(fields, key)


def _node(name: str, fields: Mapping[str, str], default_port: int) -> Node:
    raw_state = _required(fields, "State")
    if not raw_state:
        raise BadRecord("State is empty")
    reason, user = _reason(fields.get("Reason", ""))
    return Node(
        name=name,
        state=_node_state(raw_state),
        raw_state=raw_state,
        gpus=gpus(_value(fields, "Gres")) or gpus(_value(fields, "CfgTRES")),
        partitions=tuple(filter(None, _value(fields, "Partitions").split(","))),
        reason=reason,
        reason_user=user,
        address=_value(fields, "NodeAddr") or name,
        port=_number(fields, "Port", default_port),
        gpu_type=gpu_type(_value(fields, "Gres")),
    )


def _node_state(raw: str) -> NodeState:
    base, *flags = re.split(r"[+*~#!%$@^-]+", raw.rstrip("*~#!%$@^-"))
    words = {base, *flags}
    if raw.rstrip("~#!%$@^-").endswith("*"):
        words.add("NOT_RESPONDING")
    if words & _DOWN:
        return NodeState.DOWN
    if words & _DRAINED:
        return NodeState.DRAINED
    if base in _UP and not words & _UNHEARD:
        return NodeState.UP
    return NodeState.UNKNOWN


def _reason(text: str) -> tuple[str, str]:
    match = _REASON.fullmatch(text.strip())
    if match is None or match[1] in _NEVER:
        return "", ""
    return match[1], match[2] or ""


def _job(
    fields: Mapping[str, str],
    repeated: set[str],
    seen: Mapping[int, Allocation],
    nodes: Mapping[str, Node],
) -> Allocation:
    twice = sorted(filter(_TRUSTED_KEY.fullmatch, repeated))
    if twice:
        raise BadRecord(f"{twice[0]} stands twice")
    job_id = int(_token(fields, "JobId"))
    if job_id in seen:
        raise BadRecord("shown twice")
    user, uid = _owner(_required(fields, "UserId"))
    state = _job_state(_required(fields, "JobState"))
    pending = state is JobState.PENDING  # a requeued job may still show where it was
    names = () if pending else _names(_value(fields, "NodeList"))
    count = _job_gpus(fields)
    return Allocation(
        job_id=job_id,
        name=fields.get("JobName", "").strip(),
        user=user,
        uid=uid,
        account=_value(fields, "Account"),
        partition=_value(fields, "Partition"),
        state=state,
        nodes=names,
        batch_host="" if pending else _value(fields, "BatchHost"),
        gpus=count,
        submit_time=_time(fields, "SubmitTime"),
        # Before they are facts, Slurm shows its forecasts.
        start_time=0.0 if pending else _time(fields, "StartTime"),
        end_time=0.0 if state.live else _time(fields, "EndTime"),
        time_limit_seconds=_limit(_value(fields, "TimeLimit")),
        restarts=_number(fields, "Restarts", 0),
        reason=_value(fields, "Reason"),
        comment=fields.get("Comment", "").strip(),
        whole_nodes=_whole(fields, names, count, nodes),
    )


def _owner(text: str) -> tuple[str, int]:
    match = _OWNER.fullmatch(text)
    if match is None:
        raise BadRecord(f"UserId={text[:40]} names no uid")
    return match[1], int(match[2])


def _job_state(text: str) -> JobState:
    return JOB_STATES.get(text.split("+")[0], JobState.UNKNOWN)


def _job_gpus(fields: Mapping[str, str]) -> int:
    for key in ("AllocTRES", "TRES", "ReqTRES", "TresPerJob"):
        count = gpus(_value(fields, key))
        if count:
            return count
    # A cluster may not track gres/gpu; then only the request tells.
    per_node = gpus(_value(fields, "TresPerNode")) * _number(fields, "NumNodes", 1)
    return per_node or gpus(_value(fields, "TresPerTask")) * _number(fields, "NumTasks", 1)


def _whole(
    fields: Mapping[str, str], names: tuple[str, ...], count: int, nodes: Mapping[str, Node]
) -> bool:
    """Nobody else can get a GPU of its nodes. While pending nobody can tell: true."""
    if not names or _value(fields, "OverSubscribe") in ("NO", "EXCLUSIVE"):
        return True
    return all(name in nodes for name in names) and count == sum(nodes[n].gpus for n in names)


def _names(hostlist: str) -> tuple[str, ...]:
    try:
        return expand(hostlist)
    except BadHostlist as error:
        raise BadRecord(str(error)) from error


def _number(fields: Mapping[str, str], key: str, default: int) -> int:
    """A plain number, or the lower one of `2-4`."""
    text = _value(fields, key).split("-")[0]
    if not text:
        return default
    if not text.isdecimal():
        raise BadRecord(f"{key}={text[:40]} is not a number")
    return int(text)


def _time(fields: Mapping[str, str], key: str) -> float:
    text = _value(fields, key)
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()
    except ValueError as error:
        raise BadRecord(f"{key}={text[:40]} is not a time") from error


def _limit(text: str) -> int:
    """Seconds; 0 for UNLIMITED, and for Partition_Limit, which is not known yet."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
