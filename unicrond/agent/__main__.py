"""agent.pyz check|prove|run [options] -- program [arguments]. Exit code 2: wrong words."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence

from unicrond.agent import copies, facts, options, processes, settings, wishes
from unicrond.agent.agent import Agent
from unicrond.agent.claim import Claim
from unicrond.agent.companion import base_of
from unicrond.agent.environment import marker
from unicrond.agent.guardian import Guardian
from unicrond.agent.job import gpus_of, job_of
from unicrond.agent.options import Spec
from unicrond.agent.proof import prove
from unicrond.agent.ranksocket import private_folder
from unicrond.errors import BadInput

log = logging.getLogger(__name__)
GUARDIAN_SHARE = 0.8  # of the lease: what the guardian ends must be over when the lease is


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(
        format="%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
        level=logging.INFO,
    )
    verbs = {"check": _check, "prove": _prove, "run": _run}
    try:
        if not arguments or arguments[0] not in verbs:
            raise BadInput(f"usage: agent.pyz check|prove|run ...; {options.USAGE}")
        return verbs[arguments[0]](arguments[1:])
    except BadInput as error:
        print(f"unicron-run: {error}", file=sys.stderr)
        return 2


def _check(arguments: Sequence[str]) -> int:
    """Prints, for the wrapper, what it must export."""
    environment = dict(os.environ)
    nodes = int(environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or 1)
    base = base_of(environment)
    nodes = len(base.nodes) if base else nodes
    wished = _wishes(environment) if base is None else wishes.handed_on(environment)
    spec = options.parse([*wished, *arguments], nodes, environment.get("SLURM_JOB_NAME", ""))
    _need_program(spec)
    _need_ranks(spec, gpus_of(environment))
    site = settings.load(settings.paths(environment))
    found = facts.ask(environment)
    for note in found.notes:
        print(f"unicron-run: {note}", file=sys.stderr)
    node, gpus = environment.get("SLURMD_NODENAME", ""), gpus_of(environment)
    if 0 < gpus < found.gpus.get(node, 0):
        print(
            f"unicron-run: this job has {gpus} of the {found.gpus[node]} GPUs of {node};"
            " Unicron works on whole nodes and will not move it to others",
            file=sys.stderr,
        )
    handed_on = facts.to_json(found)
    if len(handed_on) < facts.LONGEST_VARIABLE:
        print(f"export {facts.VARIABLE}={shlex.quote(handed_on)}")
    print(f"export {wishes.VARIABLE}={shlex.quote(json.dumps(wished))}")
    if base is not None:
        print(f"base={base.run_id}")
    elif site.unicrond_key:
        print("proves=yes")
    print(f"cpu_bind={'--cpu-bind=none' if found.binds_cpus else ''}")
    return 0


def _prove(_: Sequence[str]) -> int:
    prove(os.environ)
    return 0


def _wishes(environment: Mapping[str, str]) -> list[str]:
    return wishes.options_of(wishes.comment_of(facts.record_of(environment)))


def _run(arguments: Sequence[str]) -> int:
    environment = dict(os.environ)
    arguments = [*wishes.handed_on(environment), *arguments]
    job = job_of(environment, facts.facts_of(environment))
    spec = options.parse(
        arguments, len(job.base_nodes or job.nodes), environment.get("SLURM_JOB_NAME", "")
    )
    _need_ranks(spec, job.gpus)
    site = settings.load(settings.paths(environment))
    folder = private_folder(job.run_id, job.node)
    processes.set_name("unicron-agent")
    processes.adopt_orphans()
    claim = Claim(job.run_id, job.node, job.agent)
    if holder := claim.take():
        log.warning("%s is this run's agent on %s already: leaving", holder, job.node)
        claim.close()
        return 0
    copies.sweep(job.run_id, job.node)
    environment.update(copies.variables(job.run_id, job.node))
    mark = marker(job.run_id, job.node, job.agent)
    guardian = Guardian(mark, GUARDIAN_SHARE * site.lease_seconds)
    nodes = len(job.nodes)
    log.info("agent=%s run=%d node=%s nodes=%d", job.agent, job.run_id, job.node, nodes)

    async def live() -> int:
        claim.serve(asyncio.get_running_loop())
        return await Agent(job, spec, site, environment, guardian, folder).run()

    code = asyncio.run(live())
    copies.remove(job.run_id, job.node)
    return code


def _need_program(spec: Spec) -> None:
    program = spec.program[0]
    if shutil.which(program) is None:
        raise BadInput(
            f"{program}: no such program on PATH; give its full path or load its environment"
        )


def _need_ranks(spec: Spec, gpus: int) -> None:
    if not spec.ranks_per_node and not gpus:
        raise BadInput(
            "--ranks-per-node: the job has no GPUs to count; give the option,"
            " or ask sbatch for GPUs with --gpus-per-node"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
