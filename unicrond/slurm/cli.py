"""CommandLineSlurm: the Slurm port over scontrol. Looks again before each act.

Two commands a snapshot, whatever the cluster's size, and squeue when there are new jobs with GPUs
(listing.py says why); now and then reservations and the topology too. An empty or failed answer
is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from unicrond.errors import Refused, SlurmUnavailable
from unicrond.model.cluster import Allocation, JobState, Node, NodeState, Snapshot
from unicrond.ports import Clock
from unicrond.slurm import admincomment, checks, sizing
from unicrond.slurm.command import SlurmCommand
from unicrond.slurm.hostlist import fold
from unicrond.slurm.listing import Listing
from unicrond.slurm.parse import (
    NO_JOBS,
    BadRecord,
    Nodes,
    excluded_nodes,
    own_record,
    parse_jobs,
    parse_nodes,
    slurmd_port,
    subject,
    unknown_job,
)
from unicrond.slurm.topology import Topology
from unicrond.slurm.windows import Maintenance

_TOLD_TROUBLES = 10  # the others are counted
# A node refuses a job's new start in the second in which it killed the old one, and the job fails:
# "Job already killed, do not launch batch job".
SETTLE_SECONDS = 2
_SHOW = ("scontrol", "--all", "--local", "--oneliner", "show")
_LIST = ("squeue", "--all", "--local", "--noheader", "--states=all", "--format=%A")


class CommandLineSlurm:
    """Needs Operator for acts on jobs and Admin for drains; looking needs no right. `before_act` is
    called right before a command that changes something, and raises where that must not be."""

    def __init__(
        self,
        clock: Clock,
        prefix: Sequence[str] = (),
        timeout_seconds: float = 10.0,
        before_act: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self._before_act = before_act
        self._command = SlurmCommand(prefix, timeout_seconds)
        self._config: str | None = None
        self._listing = Listing(self._list_jobs, self._shown_alone)
        self._topology = Topology(lambda: self._command.run(*_SHOW, "topology"))
        self._maintenance = Maintenance(lambda: self._command.run(*_SHOW, "reservation"))

    def snapshot(self) -> Snapshot:
        at = self._clock.now()
        try:
            nodes = self._nodes(at)
        except (Refused, SlurmUnavailable) as error:
            return Snapshot(at, None, None, str(error))  # a slow slurmctld is not asked twice
        try:
            jobs = self._listing.own(parse_jobs(self._show_jobs(), nodes.known), nodes.known)
        except (Refused, SlurmUnavailable) as error:
            return Snapshot(at, nodes.known, None, _told([*nodes.troubles, str(error)]))
        allocations = {
            job.job_id: job
            for job in jobs.known.values()
            if job.gpus or job.state is JobState.UNKNOWN
        }
        return Snapshot(at, nodes.known, allocations, _told([*nodes.troubles, *jobs.troubles]))

    def drain(self, node: str, reason: str) -> None:
        if checks.drain_is_due(self._node(node), reason):
            self._update(f"NodeName={fold([node])}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str, reason: str) -> None:
        seen = self._node(node)
        if checks.resume_is_due(seen, reason):
            # A node that was down for our reason does not come up by itself.
            verb = "RESUME" if seen.state is NodeState.DOWN else "UNDRAIN"
            self._update(f"NodeName={fold([node])}", f"State={verb}")

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        text = self._show_job(job_id)
        job = self._read_job(job_id, text)
        if checks.shrink_is_due(job, keep):
            staying = fold(node for node in job.nodes if node in keep)
            self._update(f"JobId={subject(text, job_id)}", f"NodeList={staying}")

    def cancel(self, job_id: int, uid: int) -> None:
        text = self._show_job(job_id)
        if checks.cancel_is_due(self._read_job(job_id, text), uid):
            self._act("scancel", subject(text, job_id))

    def requeue(self, job_id: int, restarts: int) -> None:
        text = self._show_job(job_id)
        if checks.requeue_is_due(self._read_job(job_id, text), restarts):
            self._act("scontrol", "requeue", subject(text, job_id))

    def expedite(self, job_id: int, exclude: Sequence[str], nodes: int = 0) -> None:
        text = self._show_job(job_id)
        job = self._read_job(job_id, text)
        checks.expedite_is_allowed(job)
        # Slurm is seconds late for a later time than now; it writes anew when it was queued.
        settled = self._clock.now() >= job.submit_time + SETTLE_SECONDS
        words = ["StartTime=now" if settled else f"StartTime=now+{SETTLE_SECONDS}"]
        if nodes:
            words += sizing.words(text, nodes, sizing.version_of(self._configuration()))
        exclusion, note = _exclusion(text, exclude)
        words = [f"JobId={subject(text, job_id)}", *words, *exclusion]
        try:
            self._update(*words, *note)
        except Refused:
            if not note:
                raise
            self._update(*words)  # without the right to write AdminComments the job is to start too

    def reserve(self, job_id: int, user: str, nodes: Sequence[str]) -> None:
        name = f"unicron-{job_id}"
        if f"ReservationName={name} " in self._command.run(*_SHOW, "reservation"):
            return  # an earlier one ends by itself within its two minutes
        self._command.run(
            "scontrol", "create", "reservation", f"ReservationName={name}",
            f"nodes={fold(sorted(nodes))}", f"users={user}", "starttime=now", "duration=2",
            "flags=ignore_jobs,flex,magnetic",
        )  # fmt: skip

    def tell(self, job_id: int, verdict: str) -> None:
        text = self._show_job(job_id)
        comment = admincomment.of_record(text)
        if comment is None:
            raise Refused("its AdminComment holds somebody else's words")
        told = admincomment.with_verdict(comment, job_id, verdict)
        self._update(f"JobId={subject(text, job_id)}", f"AdminComment={told}")

    def _update(self, *words: str) -> None:
        self._act("scontrol", "update", *words)

    def _act(self, *words: str) -> None:
        self._before_act()
        self._command.act(*words)

    def _nodes(self, at: float) -> Nodes:
        port = slurmd_port(self._configuration())
        nodes = parse_nodes(self._command.run(*_SHOW, "node"), port)
        if not nodes.known:
            raise SlurmUnavailable("scontrol show node: an empty answer")
        placed, unplaced = self._topology.placed(nodes.known, at)
        marked, unmarked = self._maintenance.announced(placed, at)
        return Nodes(marked, (*nodes.troubles, *filter(None, (unplaced, unmarked))))

    def _configuration(self) -> str:
        """Asked once: what we read of it changes only with a restart of the whole cluster."""
        if self._config is None:
            self._config = self._command.run("scontrol", "show", "config")
        return self._config

    def _show_jobs(self) -> str:
        text = self._command.run(*_SHOW, "job")
        if "JobId=" not in text and NO_JOBS not in text:
            raise SlurmUnavailable("scontrol show job: an empty answer")
        return text

    def _show_job(self, job_id: int) -> str:
        return own_record(self._command.run(*_SHOW, "job", str(job_id)), job_id)

    def _list_jobs(self) -> frozenset[int]:
        ids = frozenset(map(int, filter(str.isdecimal, self._command.run(*_LIST).split())))
        if not ids:
            raise SlurmUnavailable("squeue: an empty answer")
        return ids

    def _shown_alone(self, job_id: int, nodes: Mapping[str, Node]) -> Allocation:
        shown = parse_jobs(self._show_job(job_id), nodes)
        return shown.known.get(job_id, unknown_job(job_id))

    def _read_job(self, job_id: int, text: str) -> Allocation:
        jobs = parse_jobs(text, {})
        job = jobs.known.get(job_id)
        if job is None or job.state is JobState.UNKNOWN:
            raise SlurmUnavailable(f"job {job_id} is unknown: {_told(jobs.troubles)}")
        return job

    def _node(self, name: str) -> Node:
        nodes = parse_nodes(self._command.run(*_SHOW, "node", fold([name])))
        if name not in nodes.known or nodes.troubles:
            raise SlurmUnavailable(f"node {name} is unknown: {_told(nodes.troubles)}")
        return nodes.known[name]


def _exclusion(text: str, exclude: Sequence[str]) -> tuple[list[str], list[str]]:
    """The user's own exclusions stay; ours of before go, where it is noted that they are ours.
    What is to be written, and the note."""
    shown, comment = set(_excluded(text)), admincomment.of_record(text)
    before = set(admincomment.excluded(comment or {}))
    users = shown - before
    wanted, ours = users | set(exclude), set(exclude) - users
    words = [f"ExcNodeList={fold(sorted(wanted))}"] if wanted != shown else []
    if comment is None or ours == before:
        return words, []
    return words, [f"AdminComment={admincomment.with_excluded(comment, ours)}"]


def _excluded(text: str) -> tuple[str, ...]:
    try:
        return excluded_nodes(text)
    except BadRecord as error:
        raise Refused(f"excluded nodes of the job are unknown: {error}") from error


def _told(troubles: Sequence[str]) -> str:
    told = "; ".join(troubles[:_TOLD_TROUBLES])
    more = len(troubles) - _TOLD_TROUBLES
    return f"{told}; and {more} more" if more > 0 else told
