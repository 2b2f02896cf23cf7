"""Carries out what the leader decides, step by step, by orders to the run's agents."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from unicrond.agent import leader, record, slurm
from unicrond.agent.executor import Executor
from unicrond.agent.fellows import Fellows
from unicrond.agent.job import Job
from unicrond.agent.leader import Choice, View
from unicrond.agent.options import Spec
from unicrond.agent.orders import Result, failed
from unicrond.agent.settings import Settings
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.link import messages
from unicrond.link.frames import Body
from unicrond.link.peers import ports
from unicrond.model.decision import OutcomeState
from unicrond.model.run import Assignment, Slot

log = logging.getLogger(__name__)
STOP_TIMEOUT_SECONDS = 25.0
START_TIMEOUT_SECONDS = 60.0
RETRY_SECONDS = 2.0
REFUSED_REQUEUES = 3
ANSWER_SECONDS = 2.0


@dataclass(slots=True)
class _Memory:
    """Of this leader, since the last progress."""

    broken_since: float | None = None
    whole_since: float | None = None
    restarted: bool = False
    progressed: bool = False
    spawned: frozenset[str] = frozenset()
    spawned_at: float = 0.0
    refusals: int = 0
    failed_starts: int = 0
    counted: bool = False  # this start's requeue
    requeue_since: float = 0.0  # when it was wanted first
    not_before: float = 0.0


class Conductor:
    def __init__(
        self,
        job: Job,
        spec: Spec,
        settings: Settings,
        fellows: Fellows,
        executor: Executor,
        slurm_answers: Callable[[], Awaitable[bool]],
        say: Callable[[str], None],
    ) -> None:
        self._job = job
        self._spec = spec
        self._settings = settings
        self._fellows = fellows
        self._executor = executor
        self._slurm_answers = slurm_answers
        self._say = say
        self._noted = ""
        self._started = time.monotonic()
        self._memory = _Memory()
        self._record = record.read(job.output_folder, job.restarts)
        self._numbers = itertools.count(1)
        self._task: asyncio.Task[None] | None = None
        self._config = leader.Config(
            settings.lease_seconds,
            settings.start_timeout_seconds,
            settings.unattended_timeout_seconds,
        )

    def consider(self, position: int) -> None:
        """To be called often, on each hub; `position` 0 is the leader."""
        now = time.monotonic()
        view = self._view(now, position)
        self._observe(now, view)
        if self._task and self._task.done() and not self._task.cancelled():
            self._task.result()  # a defect in it ends this agent
        if (self._task and not self._task.done()) or now < self._memory.not_before:
            return
        if position == 0 and view.generation > self._record.generation:  # unicrond ordered it
            new = replace(self._record, generation=view.generation)
            self._task = asyncio.get_running_loop().create_task(self._keep(new))
            return
        choice = leader.decide(view, self._config)
        if not isinstance(choice, leader.Wait):
            self._task = asyncio.get_running_loop().create_task(self._act(choice))

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()

    async def requeue(self, reason: str) -> None:
        """Because the job would end soon anyway: nothing failed."""
        self._note(reason)
        self._say(reason)
        for _ in range(REFUSED_REQUEUES):
            try:
                await slurm.requeue(self._job.run_id, self._job.restarts, self._job.node)
            except (Refused, SlurmUnavailable) as error:
                self._note(f"the requeue waits: {error}")
                await asyncio.sleep(RETRY_SECONDS)
                continue
            return

    # ------------------------------------------------------------ seeing

    def _view(self, now: float, position: int) -> View:
        memory = self._memory
        assignment, newest = self._fellows.assignment(), self._fellows.newest_generation()
        known = assignment if assignment and assignment.generation == newest else None
        broken = now if memory.broken_since is None else memory.broken_since
        return View(
            nodes=self._job.nodes,
            min_nodes=self._spec.min_nodes,
            max_nodes=self._spec.max_nodes,
            position=position,
            peers=self._fellows.peers(),
            members=known.nodes if known else (),
            generation=newest,
            uptime=now - self._started,
            quiet=now - max(broken, self._executor.last_order_at),
            restarted=memory.restarted,
            spawned=memory.spawned,
            spawn_age=now - memory.spawned_at,
            failed_starts=memory.failed_starts,
            requeues_without_progress=(
                0 if memory.progressed else self._record.requeues_without_progress
            ),
        )

    def _observe(self, now: float, view: View) -> None:
        memory = self._memory
        if not view.members:
            return
        if leader.trouble_of(view, self._settings.lease_seconds).words:
            memory.broken_since = memory.broken_since or now
            memory.whole_since = None
            return
        memory.broken_since, memory.requeue_since = None, 0.0
        memory.whole_since = memory.whole_since or now
        if now - memory.whole_since > self._settings.progress_seconds:
            memory.progressed, memory.restarted, memory.spawned = True, False, frozenset()

    # ------------------------------------------------------------ acting

    async def _act(self, choice: Choice) -> None:
        if not await self._carry_out(choice):
            self._memory.not_before = time.monotonic() + RETRY_SECONDS

    async def _carry_out(self, choice: Choice) -> bool:
        """False when it did not work out, so that the next try waits a little."""
        unattended = isinstance(choice, leader.Restart | leader.Spawn | leader.Requeue)
        if unattended and not await self._slurm_answers():
            self._note(f"slurmctld does not answer here, so nothing is done: {choice.reason}")
            return False
        self._note(choice.reason)
        if unattended:
            self._say(choice.reason)
        if isinstance(choice, leader.Requeue):
            return await self._requeue(choice)
        if isinstance(choice, leader.End):
            return await self._end(choice.exit_code, choice.reason)
        if isinstance(choice, leader.Spawn):
            return await self._spawn(choice.nodes)
        if isinstance(choice, leader.Restart):
            self._memory.restarted = True
            return await self._start_generation(choice.nodes)
        if isinstance(choice, leader.StartFirst):
            return await self._start_generation(choice.nodes)
        return True

    def _note(self, text: str) -> None:
        """The same sentence every few seconds would hide the others."""
        if text != self._noted:
            log.info("leader: %s", text)
        self._noted = text

    async def _start_generation(self, nodes: tuple[str, ...]) -> bool:
        newest = max(self._fellows.newest_generation(), self._record.generation)
        generation = max(self._job.first_generation, newest + 1)
        await self._keep(replace(self._record, generation=generation))
        port = await self._stop_all(nodes, generation - 1)
        if not port:
            self._memory.failed_starts += 1
            return False
        assignment = self._assignment(nodes, generation)
        args = {
            "assignment": messages.assignment_to(assignment),
            "master_node": nodes[0],
            "master_port": port,
        }
        results = await self._order_all("start_ranks", args, nodes, START_TIMEOUT_SECONDS)
        return _all_done("start_ranks", results, nodes)

    async def _stop_all(self, nodes: tuple[str, ...], generation: int) -> int:
        """Rank 0's free port, 0 when it is not proved that all ranks are gone."""
        args: Body = {"generation": generation}
        results = await self._order_all("stop_ranks", args, nodes, STOP_TIMEOUT_SECONDS)
        if not _all_done("stop_ranks", results, nodes):
            return 0
        port = results[nodes[0]].data.get("port")
        return port if isinstance(port, int) else 0

    def _assignment(self, nodes: Iterable[str], generation: int) -> Assignment:
        order = self._next_key()
        peers = self._fellows.peers()
        places = [(node, local) for node in nodes for local in range(peers[node].ranks)]
        slots = tuple(
            Slot(rank, f"{order}.{rank}", node, local) for rank, (node, local) in enumerate(places)
        )
        return Assignment(generation, order, slots)

    async def _spawn(self, nodes: tuple[str, ...]) -> bool:
        self._memory.spawned |= frozenset(nodes)
        self._memory.spawned_at = time.monotonic()
        for node in nodes:
            body = self._body("spawn_agent", {"target": node})
            await self._fellows.order(self._job.node, body, RETRY_SECONDS)
        return True

    async def _requeue(self, choice: leader.Requeue) -> bool:
        """As the owner, and only if the job is still the one that we know."""
        await self._count_requeue()
        try:
            lost = await self._lost()
            await slurm.requeue(self._job.run_id, self._job.restarts, self._job.node, lost)
        except SlurmUnavailable as error:
            self._note(f"the requeue waits: {error}")
        except Refused as error:
            log.warning("leader: %s", error)
            self._memory.refusals += 1
            if self._memory.refusals >= REFUSED_REQUEUES:
                await self._end(choice.exit_code, f"{choice.reason}: refused, {error}")
        return False  # until Slurm ends us

    async def _lost(self) -> list[str]:
        """Nodes that do not answer at all, as long as Slurm may be expected to take them."""
        memory, now = self._memory, time.monotonic()
        memory.requeue_since = memory.requeue_since or now
        if now - memory.requeue_since > 2 * self._job.facts.slurmd_timeout_seconds:
            return []
        peers, lease = self._fellows.peers(), self._settings.lease_seconds
        unheard = [n for n in self._job.nodes if n not in peers or peers[n].age > lease]
        addresses = [self._job.facts.address(node) for node in unheard]
        there = await asyncio.gather(*(_answers(a, ports(self._job.run_id)[0]) for a in addresses))
        return [node for node, answers in zip(unheard, there, strict=True) if not answers]

    async def _count_requeue(self) -> None:
        """Once for each start of the job, however often the requeue is tried."""
        if not self._memory.counted:
            self._memory.counted = True
            before = 0 if self._memory.progressed else self._record.requeues_without_progress
            await self._keep(replace(self._record, requeues_without_progress=before + 1))

    async def _keep(self, new: record.Record) -> None:
        self._record = new
        await asyncio.to_thread(record.write, self._job.output_folder, new)

    async def _end(self, exit_code: int, reason: str) -> bool:
        args = {"exit_code": exit_code, "reason": reason}
        results = await self._order_all("end_run", args, (), STOP_TIMEOUT_SECONDS)
        return _all_done("end_run", results, results)

    async def _order_all(
        self, kind: str, args: Body, nodes: Iterable[str], timeout_seconds: float
    ) -> dict[str, Result]:
        """To all agents that are heard, and to `nodes`: those outside learn of the generation."""
        lease = self._settings.lease_seconds
        heard = [node for node, peer in self._fellows.peers().items() if peer.age < lease]
        targets = list(dict.fromkeys((*nodes, *heard)))
        body = self._body(kind, args)
        answers = (self._fellows.order(node, body, timeout_seconds) for node in targets)
        return dict(zip(targets, await asyncio.gather(*answers), strict=True))

    def _body(self, kind: str, args: Body) -> Body:
        return {"type": "order", "key": self._next_key(), "kind": kind, "args": args}

    def _next_key(self) -> str:
        return f"a:{self._job.agent}:{next(self._numbers)}"


async def _answers(address: str, port: int) -> bool:
    """A refusal is an answer of the node's kernel."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), ANSWER_SECONDS)
    except ConnectionRefusedError:
        return True
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    return True


def _all_done(kind: str, results: Mapping[str, Result], nodes: Iterable[str]) -> bool:
    for node in nodes:
        result = results.get(node, failed("not asked"))
        if result.state is not OutcomeState.DONE:
            log.warning("leader: %s on %s: %s, %s", kind, node, result.state, result.detail)
            return False
    return True
