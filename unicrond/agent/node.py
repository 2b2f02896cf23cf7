"""This node's part of the run: its state, and what it does on orders.

                           ┌─ start_ranks ─┐ that keeps members
                           v               │
IDLE ── start_ranks ──> STARTING ──> RUNNING ── every rank ends with 0 ──> DONE
  ^                       ^ │           │                                  │
  │          start_ranks  │ └─────┬─────┘ a rank fails, the lease runs out,│
  │   that keeps members  │       v       hold_ranks                       │
  │                       └──── BROKEN                                     │
  └─ proved gone ── STOPPING <────┴──────────── stop_ranks ────────────────┘

In BROKEN ranks that take orders wait to be kept, for a limited time; all others are killed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from unicrond.agent import orders, output, standby
from unicrond.agent.environment import WAITS, Place, marker, of_generation, rank_environment
from unicrond.agent.inside import Inside
from unicrond.agent.job import Job
from unicrond.agent.orders import Result
from unicrond.agent.ranks import Launch, RankExit, Ranks
from unicrond.agent.ranksocket import RankSocket
from unicrond.agent.standby import Standby
from unicrond.errors import Refused
from unicrond.link.frames import Body
from unicrond.model.incident import SignalKind
from unicrond.model.run import Assignment, Phase, Slot

log = logging.getLogger(__name__)
TERM_SETTLES_SECONDS = 0.15
PREPARED = -1  # the generation of ranks that are in none yet: whatever stops ranks stops them
UNHELD_SECONDS = 30.0  # that survivors of a rank wait for a first word on what comes of it
EVERY_GENERATION = 1 << 53
_PORTS = range(11_000, 19_999)  # below the ephemeral ports, beside the agents' own


@dataclass(slots=True)
class State:
    """Changed by Node alone."""

    phase: Phase = Phase.IDLE
    generation: int = 0
    stopped_generation: int = -1
    assignment: Assignment | None = None
    iteration: int = -1
    exit_code: int = 0  # of the first rank that failed in this generation
    since: float = 0.0  # monotonic, when this generation started here
    closing: bool = False  # the agent was told to end: nothing is started any more

    @property
    def order(self) -> str:
        return self.assignment.order if self.assignment else ""

    def slots(self, node: str) -> list[Slot]:
        return [s for s in self.assignment.slots if s.node == node] if self.assignment else []


class Node:
    """`changed` is called when a beat is due at once, `signal` when something must be told."""

    def __init__(
        self,
        job: Job,
        program: Sequence[str],
        environment: Mapping[str, str],
        rank_socket: RankSocket,
        grace_seconds: float,
        changed: Callable[[], None],
        signal: Callable[[SignalKind, Body], None],
        copy: output.OutputCopy,
        inside: Inside,
        stand_by: Callable[[set[int]], Standby],
    ) -> None:
        self.state = State()
        self.ranks = Ranks(marker(job.run_id, job.node), self._rank_ended)
        self._standby = stand_by(self.ranks.not_ours)
        self._job = job
        self._program = program
        self._environment = environment
        self._rank_socket = rank_socket
        self._grace_seconds = grace_seconds
        self._changed = changed
        self._signal = signal
        self._copy = copy
        self._inside = inside
        self._left: set[str] = set()  # members that have not ended with 0
        self._one_at_a_time = asyncio.Lock()
        self._prepared: Assignment | None = None  # for which ranks were prepared last
        self._clearing: asyncio.Task[None] | None = None
        self._patience: asyncio.TimerHandle | None = None  # of those that wait to be kept

    @property
    def regrouping(self) -> list[int]:
        """Ranks of this generation that run here and can go over into the next."""
        members = self._can_be_kept()
        return sorted(ln.slot.rank for ln in self.ranks.launches if ln.slot.member in members)

    @property
    def prepared(self) -> list[str]:
        """Members that run here, and wait to be taken into a generation."""
        waiting = {ln.slot.member for ln in self.ranks.launches if ln.generation == PREPARED}
        return sorted(waiting & self._rank_socket.regrouping)

    def _can_be_kept(self) -> set[str]:
        own = (ln for ln in self.ranks.launches if ln.generation == self.state.generation)
        return {ln.slot.member for ln in own} & self._rank_socket.regrouping

    @property
    def has_ranks(self) -> bool:
        """That run, or wait to be kept."""
        phase = self.state.phase
        return phase in (Phase.STARTING, Phase.RUNNING) or (
            phase is Phase.BROKEN and bool(self._can_be_kept())
        )

    # ------------------------------------------------------------ orders

    async def stop_ranks(self, generation: int) -> Result:
        async with self._one_at_a_time:
            return await self._stop(generation, self._grace_seconds)

    async def _stop(self, generation: int, grace_seconds: float) -> Result:
        state = self.state
        if state.generation <= generation and state.phase is not Phase.IDLE:
            self._lose_patience()
            self._enter(Phase.STOPPING)
        left = await self.ranks.stop(generation, grace_seconds)
        if left:
            return orders.failed(f"{self._job.node}: {left}")
        if state.generation <= generation:
            state.phase = Phase.IDLE
        self._gone(generation)
        return orders.done(port=free_port())

    async def hold_ranks(self, generation: int, seconds: float) -> Result:
        async with self._one_at_a_time:
            return self._hold(generation, seconds)

    def _hold(self, generation: int, seconds: float) -> Result:
        """The generation is over. Who can be kept waits, for no longer than this."""
        state = self.state
        if state.closing or state.generation != generation:
            return orders.refused(f"{self._job.node} is in generation {state.generation}")
        if not self.has_ranks or not self._can_be_kept():
            return orders.refused(f"no rank on {self._job.node} takes orders over the rank socket")
        self._spare(seconds)
        return orders.done(port=free_port())

    async def prepare_ranks(self, new: Assignment) -> Result:
        async with self._one_at_a_time:
            return await self._prepare(new)

    async def _prepare(self, new: Assignment) -> Result:
        """Starts this node's ranks of a generation to come: they load what they need, and wait."""
        state, here = self.state, self._job.node
        if state.closing or self.has_ranks or new.generation <= state.generation:
            return orders.refused(f"{here} is in generation {state.generation}")
        mine = [slot for slot in new.slots if slot.node == here]
        if {slot.member for slot in mine} <= self.ranks.running.keys():
            return orders.done()
        kept, fresh, why = orders.divide(new, mine, {}, ())
        if why or kept:
            return orders.refused(why or f"no new rank on {here}")
        self._prepared = new
        place = self._place(here, 0)
        launches = [self._launch_of(new, slot, place, prepared=True) for slot in fresh]
        try:
            await asyncio.to_thread(self._job.output_folder.mkdir, parents=True, exist_ok=True)
            forked = await self._standby.fork(launches)
            if state.closing:
                standby.discard(forked)
                return orders.refused(f"the agent on {here} is ending")
            self.ranks.start(launches, forked)
        except (OSError, Refused) as error:
            return orders.failed(f"{here}: {error}")
        return orders.done()

    async def start_ranks(self, new: Assignment, master_node: str, port: int) -> Result:
        async with self._one_at_a_time:
            return await self._start(new, master_node, port)

    async def _start(self, new: Assignment, master_node: str, port: int) -> Result:
        state = self.state
        if state.closing:
            return orders.refused(f"the agent on {self._job.node} is ending")
        why = orders.why_not_start(new, state.order, state.generation, state.stopped_generation)
        if why:
            return orders.refused(why)
        if new.generation == state.generation:
            return orders.done()
        mine = [slot for slot in new.slots if slot.node == self._job.node]
        running, regrouping = self.ranks.running, self._rank_socket.regrouping
        kept, fresh, why = orders.divide(new, mine, running, regrouping)
        if why:
            return orders.refused(why)
        place = self._place(master_node, port)
        self.ranks.keep(kept, new.generation)
        self._inside.begin(new.generation, kept)
        places = {slot.member: place_in(new, slot, place) for slot in kept}
        self._rank_socket.begin(new.generation, places)
        self._begin(new, mine)
        return await self._launch(new, fresh, place)

    def _begin(self, new: Assignment, mine: Sequence[Slot]) -> None:
        state = self.state
        self._lose_patience()
        state.assignment, state.generation = new, new.generation
        state.iteration, state.exit_code, state.since = -1, 0, time.monotonic()
        self._left = {slot.member for slot in mine}
        self._enter(Phase.STARTING if mine else Phase.IDLE)

    async def _launch(self, new: Assignment, fresh: Sequence[Slot], place: Place) -> Result:
        launches = [self._launch_of(new, slot, place) for slot in fresh]
        try:
            await self._end_older(new.generation - 1)
            if launches:
                await asyncio.to_thread(self._job.output_folder.mkdir, parents=True, exist_ok=True)
            if self.state.phase is Phase.IDLE:
                return orders.done()
            forked = await self._standby.fork(launches)
            if self.state.phase is not Phase.STARTING or self.state.closing:
                standby.discard(forked)
                return orders.failed("the lease or the run ended while ranks were being started")
            self.ranks.start(launches, forked)
        except (OSError, Refused) as error:
            return self._start_failed(new, str(error))
        self._copy.follow([(ln.slot.rank, ln.output) for ln in self.ranks.launches])
        self._enter(Phase.RUNNING if self._left else Phase.DONE)
        return orders.done()

    async def _end_older(self, generation: int) -> None:
        """Whom a new generation does not keep, unless it was stopped before; raises Refused."""
        if self.state.stopped_generation < generation or self._wait_in_vain():
            left = await self.ranks.stop(generation, self._grace_seconds)
            if left:
                raise Refused(left)
            self._gone(generation)

    def _wait_in_vain(self) -> bool:
        return any(launch.generation == PREPARED for launch in self.ranks.launches)

    def _start_failed(self, new: Assignment, text: str) -> Result:
        self.state.exit_code = 127
        self._give_up()
        self._signal(SignalKind.START_FAILED, {"generation": new.generation, "text": text})
        return orders.failed(f"{self._job.node}: {text}")

    def _launch_of(
        self, new: Assignment, slot: Slot, place: Place, prepared: bool = False
    ) -> Launch:
        environment = rank_environment(self._environment, new, slot, place)
        environment.update(self._inside.environment(slot, environment))
        if prepared:
            environment[WAITS] = "1"
        return Launch(
            PREPARED if prepared else new.generation,
            slot,
            self._program,
            environment,
            output.rank_file(self._job.output_folder, new.generation, slot.rank),
        )

    def _place(self, master_node: str, port: int) -> Place:
        job = self._job
        address = job.facts.address(master_node)
        mark = marker(job.run_id, job.node, job.agent)
        return Place(job.run_id, mark, address, port, str(self._rank_socket.path))

    # ------------------------------------------------------------ what happens to the ranks

    def _rank_ended(self, exit_: RankExit) -> None:
        if exit_.stopped or exit_.launch.generation != self.state.generation:
            return
        wait = TERM_SETTLES_SECONDS if exit_.signal == 15 else 0.0
        if wait:  # a scancel reaches ranks and agent at the same time, in any order
            asyncio.get_running_loop().call_later(wait, self._rank_failed, exit_)
        elif exit_.exit_code:
            self._rank_failed(exit_)
        else:
            self._rank_finished(exit_)

    def _rank_finished(self, exit_: RankExit) -> None:
        slot = exit_.launch.slot
        self._left.discard(slot.member)
        if self.state.phase not in (Phase.STARTING, Phase.RUNNING):
            return
        if self._left:
            self._tell_exit(exit_)
        elif self.state.phase is Phase.RUNNING:
            self._enter(Phase.DONE)

    def _rank_failed(self, exit_: RankExit) -> None:
        state = self.state
        if state.closing or state.generation != exit_.launch.generation:
            return
        if state.phase in (Phase.STARTING, Phase.RUNNING):
            state.exit_code = exit_.exit_code
            if self._can_be_kept():
                self._spare(UNHELD_SECONDS)
            else:
                self._give_up()
            self._tell_exit(exit_)
        elif self._patience is not None:  # one that waited
            self._tell_exit(exit_)
            self._changed()
            if not self._can_be_kept():
                self._give_up()

    def _tell_exit(self, exit_: RankExit) -> None:
        slot, launch = exit_.launch.slot, exit_.launch
        cause = f"by signal {exit_.signal}" if exit_.signal else f"with exit code {exit_.exit_code}"
        self._signal(
            SignalKind.RANK_EXITED,
            {
                "age": round(time.monotonic() - exit_.noticed, 4),
                "rank": slot.rank,
                "member": slot.member,
                "generation": launch.generation,
                "text": f"rank {slot.rank} on {slot.node} ended {cause}",
                "data": {
                    "exit_code": exit_.exit_code,
                    "signal": exit_.signal,
                    "stderr": output.tail(launch.output),
                },
            },
        )

    def place_of(self, member: str) -> tuple[Slot, int] | None:
        """Slot and world size of a member that runs here, or is prepared to."""
        launch = next((ln for ln in self.ranks.launches if ln.slot.member == member), None)
        prepared = launch is not None and launch.generation == PREPARED
        assignment = self._prepared if prepared else self.state.assignment
        return (launch.slot, assignment.world_size) if launch and assignment else None

    def lose_lease(self, reason: str) -> None:
        """The run may go on without this node: its ranks end now."""
        self._give_up()
        generation = self.state.generation
        self._signal(SignalKind.LEASE_EXPIRED, {"generation": generation, "text": reason})

    def _spare(self, seconds: float) -> None:
        """This generation has failed; its ranks that take orders wait for a place in the next."""
        generation = self.state.generation
        self.ranks.kill(generation, self._can_be_kept())
        self._rank_socket.stay(generation)
        self._enter(Phase.BROKEN)
        self._lose_patience()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(seconds, self._wait_no_longer, generation)

    def _lose_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _wait_no_longer(self, generation: int) -> None:
        log.warning("no generation came for those that waited after %d", generation)
        self._give_up()

    def _give_up(self) -> None:
        """This generation has failed here: what is left of it goes, and is proved gone."""
        generation = self.state.generation
        self._lose_patience()
        self.ranks.kill(generation)
        self._enter(Phase.BROKEN)
        self._clearing = asyncio.get_running_loop().create_task(self._clear(generation))

    async def _clear(self, generation: int) -> None:
        async with self._one_at_a_time:
            left = await self.ranks.stop(generation, 0.0)
            if left:
                log.error("%s", left)
            else:
                self._gone(generation)

    def _gone(self, generation: int) -> None:
        state = self.state
        state.stopped_generation = max(state.stopped_generation, generation)
        self._changed()

    def progressed(self, generation: int, iteration: int) -> None:
        if generation == self.state.generation:
            self.state.iteration = max(self.state.iteration, iteration)

    async def close(self, grace_seconds: float) -> str:
        """Ends everything of every generation here; "" once it is proved gone."""
        state = self.state
        state.closing = True
        self._lose_patience()
        async with self._one_at_a_time:
            if state.phase is not Phase.DONE:
                self._enter(Phase.STOPPING)
            left = await self.ranks.stop(EVERY_GENERATION, grace_seconds)
            self._standby.close()
            if not left:
                self._gone(state.generation)
        return left

    def look_at_standby(self, now: float) -> None:
        if self.state.phase is Phase.RUNNING and not self.state.closing:
            self._standby.look(self.ranks.by_pid, now)

    async def clear_leftovers(self) -> str:
        """At the start of an agent: what an agent before it left behind."""
        return await self.ranks.stop(EVERY_GENERATION, 0.0)

    def _enter(self, phase: Phase) -> None:
        self.state.phase = phase
        self._changed()


def place_in(new: Assignment, slot: Slot, place: Place) -> Body:
    """What a member that is kept must know of its new generation."""
    return {
        "rank": slot.rank,
        "world_size": new.world_size,
        "environment": of_generation(new, slot, place),
    }


def free_port() -> int:
    """A port for rank 0's store that nobody listens on now; drawn, as two runs may ask at once."""
    for port in random.sample(_PORTS, 50):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
