"""unicrond: puts the parts together and runs the loop.

    processes   loop and link (this one) · Slurm watcher · API · planner
    threads     Slurm's commands, MUNGE, the lease
Where several share a database one leads and is this; the others stand by (standby.py).
Every part may die; the loop ends only on SIGTERM, when another leads, or when an invariant is
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from db.history import Forgetting
from db.lease import open_leases
from db.store import SqlStore, open_store
from unicrond import __version__
from unicrond.api.control import ControlServer
from unicrond.api.heartbeat import HEARTBEAT_KEY, Heartbeat
from unicrond.apiprocess import keep_api
from unicrond.config import Settings, as_environment, load_settings, read_flags
from unicrond.core import allocated
from unicrond.core.state import from_saved
from unicrond.core.step import Core
from unicrond.engine import Engine
from unicrond.errors import BadInput, LeaseLost, StoreUnavailable, Unavailable
from unicrond.figures import Timed, figures
from unicrond.hands import ORDERS, on_slurm
from unicrond.leading import Alone, Leading, Shared, candidate
from unicrond.link.credentials import Credentials
from unicrond.link.handshake import NO_RUN, Claim, Verdict
from unicrond.link.jobproof import CommentProofs, EitherProof, JobWord, read_secret
from unicrond.link.munge import MungeCredentials
from unicrond.link.origin import Origins
from unicrond.link.server import LinkServer
from unicrond.link.tasks import end_all
from unicrond.loop import Loop, SystemClock
from unicrond.model.cluster import JobState
from unicrond.model.decision import Action, ActionKey, ActionKind, Outcome, OutcomeState
from unicrond.model.events import Event, OutcomeArrived, PolicySet
from unicrond.notices import Notice
from unicrond.notifier import Mail, Notifier, Sink, Webhook
from unicrond.notify import notify
from unicrond.planning.client import Planning, worker_command
from unicrond.reload import difference
from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.probe import probe
from unicrond.slurm.watcher import SlurmWatcher, silence_allowed, watch_command
from unicrond.standby import stand_by
from unicrond.verdicts import Verdicts

log = logging.getLogger("unicrond")

SLURM_THREADS = 4
HEARTBEAT_SECONDS = 2.0
SWITCH_SECONDS = 0.0005  # handshakes hop between threads, and the loop is busy
GARBAGE = (20_000, 20, 50)  # new objects before a search for cycles: what agents say has none
FAILED_START_SECONDS = 1.0  # so that whoever starts us again does not do so without pause
ALONE = Alone()


class Daemon:
    """One unicrond. `run` returns when it was told to stop. `watch`: the process that looks at
    Slurm, by default the one that asks Slurm's commands."""

    def __init__(
        self,
        settings: Settings,
        store: SqlStore,
        config: Path | None,
        credentials: Credentials | None = None,
        watch: Sequence[str] = (),
        leading: Leading = ALONE,
    ) -> None:
        self.settings = settings
        self._config = config
        self._store = store
        self._leading = leading
        self._clock = SystemClock()
        self._slurm = CommandLineSlurm(
            self._clock,
            timeout_seconds=settings.slurm_timeout_seconds,
            before_act=leading.before_act,
        )
        state = from_saved(store.load(), settings.as_policy(), self._clock.now())
        self._core = Core(state)
        self._verdicts = Verdicts(self._tell_verdict)
        self._engine = Engine(self._core, store, self._perform, self._verdicts.take)
        self._loop = Loop(self._engine, self._clock)
        host, _, port = settings.agent_listen.rpartition(":")
        self._link = LinkServer(
            (host, int(port)),
            credentials or self._proofs(settings.proof_key),
            self._owner,
            self._loop.emit,
            self._clock,
        )
        self._watcher = SlurmWatcher(
            self._clock,
            self._emit,
            watch or watch_command(settings.snapshot_seconds, settings.slurm_timeout_seconds),
            silence_allowed(settings.slurm_timeout_seconds),
        )
        self._planning = Planning(store, self._clock, worker_command(config), self._loop.emit)
        self._control = ControlServer(
            settings.control_socket, self._loop.emit, self._clock.now, store.audit
        )
        self._threads = ThreadPoolExecutor(SLURM_THREADS, "slurm")
        self._origins = Origins()
        self._slurm_calls = Timed()
        self._notifier = Notifier(
            settings.cluster, _sinks(settings), lambda: self._core.state.pauses, self._clock
        )
        self._in_flight: set[ActionKey] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._readers: list[asyncio.Task[None]] = []  # with processes that read the configuration
        self._heartbeat_due = 0.0
        self._history = Forgetting(store.forget, settings.history_days, time.monotonic())

    async def run(self) -> None:
        stop = asyncio.Event()
        gc.set_threshold(*GARBAGE)
        sys.setswitchinterval(SWITCH_SECONDS)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # one an agent
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._start(self._leading.keep())
        await self._link.start()
        await self._control.start()
        self._start(self._watcher.run())
        self._start_readers()
        self._start(self._notifier.run())
        self._start(self._verdicts.run())
        self._start(self._loop.run(self._after_turn))
        notify(f"READY=1\nSTATUS=mode {self._core.state.mode}")
        log.info(
            "started version=%s mode=%s runs=%d incidents=%d",
            __version__,
            self._core.state.mode,
            len(self._core.state.runs),
            len(self._core.state.incidents),
        )
        await stop.wait()
        notify("STOPPING=1")
        await end_all(self._tasks)
        await self._control.stop()
        await self._link.stop()
        self._origins.close()
        await asyncio.to_thread(self._end_acts)

    def _end_acts(self) -> None:
        """What Slurm was asked is answered or over; then another may lead."""
        self._threads.shutdown(cancel_futures=True)
        self._leading.release()

    # events in
    def _emit(self, event: Event) -> None:
        if not self._loop.emit(event):
            log.warning("no room for an event: %s", type(event).__name__)

    def _proofs(self, key: str) -> Credentials:
        if not key:
            return MungeCredentials()

        def word(run_id: int) -> JobWord | None:
            job = self._core.state.allocations.get(run_id)
            return JobWord(job.uid, job.comment) if job else None

        return EitherProof(MungeCredentials(), CommentProofs(read_secret(Path(key)), word))

    def _owner(self, claim: Claim) -> Verdict:
        """Slurm's word on whose a job is; what we knew before counts until Slurm answered once."""
        state = self._core.state
        run_id, uid, node = claim.identity.run_id, claim.uid, claim.identity.node
        if run_id == NO_RUN:
            known = state.nodes.get(node)
            if known is None:
                return Verdict("retry", f"Slurm has not told of {node}")
            return self._origins.judge(claim.origin, node, known.address)
        job, run = state.allocations.get(run_id), state.runs.get(run_id)
        held = allocated.held_nodes(state, run, job) if job and run else job.nodes if job else ()
        owner, nodes = (job.uid, held) if job else (run.uid, run.nodes) if run else (None, ())
        if owner is None:
            return Verdict("retry", f"Slurm has not told of job {run_id} yet")
        if owner != uid:
            return Verdict("refused", f"job {run_id} is not yours")
        grows = run is not None and bool(run.companions)  # by nodes that Slurm has not told of
        if node not in nodes and job and job.state is JobState.RUNNING and not grows:
            return Verdict("refused", f"Slurm took {node} from job {run_id}")
        if node not in nodes:
            return Verdict("retry", f"{node} is not a node of job {run_id}")
        return Verdict("ok")

    # actions out
    def _perform(self, action: Action) -> None:
        if not self._leading.may_act():
            log.warning("the lease is not held now, put off: %s", action.kind)  # sent again later
        elif action.kind in ORDERS:
            if not self._link.order(action):
                log.info("order waits for its agent run=%s node=%s", action.run_id, action.node)
        elif action.key not in self._in_flight:
            self._in_flight.add(action.key)
            self._start(self._carry_out(action))

    async def _carry_out(self, action: Action) -> None:
        try:
            outcome = await self._outcome_of(action)
        finally:
            self._in_flight.discard(action.key)
        self._emit(OutcomeArrived(outcome))

    async def _outcome_of(self, action: Action) -> Outcome:
        if action.kind is ActionKind.NOTIFY:
            return await self._tell(action)
        if action.kind is ActionKind.PROBE:
            node = self._core.state.nodes.get(action.node)
            if node is None:
                return Outcome(
                    action.key,
                    self._clock.now(),
                    OutcomeState.REFUSED,
                    "its address is not known yet",
                )
            result = await probe(node.name, node.address or node.name, node.port)
            return Outcome(
                action.key,
                self._clock.now(),
                OutcomeState.DONE,
                result.detail,
                {"passed": result.passed},
            )
        running, began = asyncio.get_running_loop(), time.monotonic()
        outcome = await running.run_in_executor(
            self._threads, on_slurm, action, self._slurm, self._clock
        )
        failed = outcome.state is OutcomeState.FAILED
        self._slurm_calls.add(time.monotonic() - began, failed)
        return outcome

    async def _tell(self, action: Action) -> Outcome:
        reason = str(action.args.get("reason"))
        log.warning("a person is needed: %s", reason)
        try:
            notice = Notice(action.key, reason, action.run_id, action.node)
            done = await self._notifier.tell(notice)
        except Unavailable as error:
            return Outcome(action.key, self._clock.now(), OutcomeState.FAILED, str(error))
        return Outcome(action.key, self._clock.now(), OutcomeState.DONE, done)

    async def _tell_verdict(self, run_id: int, verdict: str) -> None:
        running = asyncio.get_running_loop()
        await running.run_in_executor(self._threads, self._slurm.tell, run_id, verdict)

    # beside the loop
    def _start(self, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(part)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _start_readers(self) -> None:
        self._readers = [
            self._start(keep_api(self._config, self._leading.me)),
            self._start(self._planning.run()),
        ]

    def _reload(self) -> None:
        """On SIGHUP. A configuration that is wrong changes nothing."""
        try:
            new = load_settings(self._config)
        except BadInput as error:
            log.error("configuration kept as it was: %s", error)
            return
        found = difference(self.settings, new)
        log.info("configuration read anew: %s", found)
        self.settings = new
        logging.getLogger().setLevel(new.log_level.upper())
        if found.policy:
            self._emit(PolicySet(self._clock.now(), found.policy))
        if found.starts_processes:
            for task in self._readers:
                task.cancel()
            self._start_readers()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LeaseLost):
            log.error("%s; this one ends", error)
            signal.raise_signal(signal.SIGTERM)
        elif error is not None:
            # Nothing that can be healed here: systemd starts us again from the journal.
            log.critical("a part of unicrond broke: stopping", exc_info=error)
            signal.raise_signal(signal.SIGTERM)

    def _after_turn(self) -> None:
        self._planning.look(self._core.state)
        now = time.monotonic()
        if now < self._heartbeat_due:
            return
        self._heartbeat_due = now + HEARTBEAT_SECONDS
        notify("WATCHDOG=1")
        state = self._core.state
        connected = sum(v.connected for run in state.live_runs() for v in run.agents.values())
        beat = Heartbeat(
            self._clock.now(),
            __version__,
            state.mode,
            connected,
            state.snapshot_at,
            state.slurm_error,
            figures(
                state, self._clock.now(), self._loop.waiting, self._loop.turns, self._slurm_calls
            ),
        )
        try:
            self._store.put_meta(HEARTBEAT_KEY, beat)
            self._history.go_on(now, self._clock.now())
        except StoreUnavailable as error:
            log.debug("no heartbeat: %s", error)  # the engine tells of a store that is away


def _sinks(settings: Settings) -> list[Sink]:
    found: list[Sink] = []
    if url := settings.notify_webhook:
        found.append(Webhook(url, settings.cluster))
    if settings.notify_smtp and settings.notify_mail_to:
        found.append(Mail(settings.notify_smtp, settings.notify_mail_from, settings.notify_mail_to))
    return found


async def serve(settings: Settings, store: SqlStore, config: Path | None) -> None:
    """Leads at once, or once it is this one's turn; until it is told to end."""
    seconds = settings.leader_lease_seconds
    if not seconds:
        await Daemon(settings, store, config).run()
        return
    leases = open_leases(settings.database_url, seconds)
    shared = Shared(leases, candidate(seconds, settings.slurm_timeout_seconds))
    row = await stand_by(shared, settings, config)
    if row is None:
        return
    store.fence(row)
    keeping = asyncio.create_task(shared.keep())  # however long it takes to load what there is
    settings = _anew(settings, config)
    daemon = await asyncio.to_thread(Daemon, settings, store, config, leading=shared)
    keeping.cancel()
    await daemon.run()


def _anew(settings: Settings, config: Path | None) -> Settings:
    try:
        return load_settings(config)
    except BadInput as error:
        log.error("configuration kept as it was: %s", error)
        return settings


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="unicrond", description="Heals the training runs of a Slurm cluster."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="instead of the usual one")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="a key of the configuration, such as policy.drains_per_hour=2; wins over all else",
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=__version__)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = options().parse_args(argv)
    try:
        flags = read_flags(arguments.set)
        settings = load_settings(arguments.config, flags=flags)
        os.environ.update(as_environment(flags))  # for the other processes, and when read anew
        logging.basicConfig(
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)s %(name)s %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%SZ",
        )
        logging.Formatter.converter = time.gmtime
        store = open_store(settings.database_url)
        asyncio.run(serve(settings, store, arguments.config))
    except BadInput as error:
        print(f"unicrond: {error}", file=sys.stderr)
        return 2
    except (StoreUnavailable, OSError) as error:
        print(f"unicrond: {error}", file=sys.stderr)
        time.sleep(FAILED_START_SECONDS)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
