"""Carries orders out, whoever gives them; the same order twice has the same outcome."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from unicrond.agent import companion, orders, slurm
from unicrond.agent.job import Job
from unicrond.agent.node import Node
from unicrond.agent.orders import Result
from unicrond.errors import ProtocolError, SlurmUnavailable
from unicrond.link import fields, messages
from unicrond.link.frames import Body
from unicrond.model.run import Assignment

log = logging.getLogger(__name__)
REMEMBERED = 256
HIGHEST_CODE = 255
MOST_MINUTES = 10_000_000
LONGEST_HOLD_SECONDS = 300.0  # ranks wait no longer for what comes of it either

Reply = Callable[[Result], None]
End = Callable[[int, str], Awaitable[Result]]


class Executor:
    def __init__(self, job: Job, node: Node, end: End) -> None:
        self.last_order_at = time.monotonic()
        self._job = job
        self._node = node
        self._end = end
        self._spawned: list[subprocess.Popen[bytes]] = []
        self._known: OrderedDict[str, asyncio.Task[Result]] = OrderedDict()

    def take(self, body: Body, reply: Reply) -> None:
        """`reply` is called once, with the outcome."""
        key = json.dumps(body.get("key"), sort_keys=True)
        task = self._known.get(key)
        if task is None:
            log.info("order key=%s kind=%s", key, body.get("kind"))
            self.last_order_at = time.monotonic()
            task = asyncio.get_running_loop().create_task(self._carry_out(body))
            self._known[key] = task
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        task.add_done_callback(lambda ended: None if ended.cancelled() else reply(ended.result()))

    async def _carry_out(self, body: Body) -> Result:
        try:
            result = await self._dispatch(fields.text(body, "kind"), fields.mapping(body, "args"))
        except ProtocolError as error:
            result = orders.refused(f"this order is not understood: {error}")
        except SlurmUnavailable as error:
            result = orders.failed(str(error))
        log.info("outcome kind=%s state=%s %s", body.get("kind"), result.state, result.detail)
        return result

    async def _dispatch(self, kind: str, args: Body) -> Result:
        if kind == "stop_ranks":
            return await self._node.stop_ranks(fields.integer(args, "generation"))
        if kind == "hold_ranks":
            seconds = fields.number(args, "seconds", 0.0, LONGEST_HOLD_SECONDS)
            return await self._node.hold_ranks(fields.integer(args, "generation"), seconds)
        if kind == "prepare_ranks":
            return await self._node.prepare_ranks(_assignment(args))
        if kind == "start_ranks":
            return await self._start(args)
        if kind == "spawn_agent":
            job_id = fields.integer(args, "companion") if "companion" in args else 0
            return self._spawn(fields.name(args, "target"), job_id)
        if kind == "submit_companion":
            return await companion.submit(self._job, _companion(args))
        if kind == "end_run":
            code = fields.integer(args, "exit_code", 0, HIGHEST_CODE)
            return await self._end(code, fields.text(args, "reason"))
        return orders.refused(f"this agent does not know the order {kind!r}")

    async def _start(self, args: Body) -> Result:
        assignment = _assignment(args)
        port = fields.integer(args, "master_port", 1, 65535)
        return await self._node.start_ranks(assignment, fields.name(args, "master_node"), port)

    def _spawn(self, node: str, companion_id: int) -> Result:
        if companion_id and not self._job.is_companion:
            self._spawned.append(companion.spawn(self._job, companion_id, node))
            return orders.done()
        if node not in self._job.nodes:
            return orders.refused(f"{node} is not a node of job {self._job.run_id}")
        log_file = self._job.output_folder / f"agent-{node}.log"
        binds_cpus = self._job.facts.binds_cpus
        self._spawned.append(slurm.spawn(node, log_file, sys.orig_argv, binds_cpus))
        return orders.done()


def _companion(args: Body) -> companion.Order:
    def listed(field: str) -> tuple[str, ...]:
        return fields.names(args, field, messages.MOST_NODES) if args.get(field) != [] else ()

    def named(field: str) -> str:
        return fields.name(args, field) if args.get(field) else ""

    return companion.Order(
        fields.integer(args, "nodes", 1, messages.MOST_NODES),
        listed("exclude"),
        fields.integer(args, "minutes", 1, MOST_MINUTES),
        fields.integer(args, "within", 1),
        named("qos"),
        named("partition"),
    )


def _assignment(args: Body) -> Assignment:
    assignment = messages.assignment_from(args.get("assignment"))
    if assignment is None or not assignment.slots:
        raise ProtocolError("`assignment` is missing or empty")
    return assignment
