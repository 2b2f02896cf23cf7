"""The user's wishes: `[options] -- program arguments`, checked before anything starts. Pure."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from unicrond.errors import BadInput

USAGE = "unicron-run [options] -- program [arguments]"


@dataclass(frozen=True, slots=True)
class Spec:
    """What one run asks for. `ranks_per_node` 0 means: one for each GPU of the node."""

    weight: float
    min_nodes: int
    max_nodes: int
    ranks_per_node: int
    name: str
    program: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message}; usage: {USAGE}")


def parser() -> argparse.ArgumentParser:
    options = _Parser(prog="unicron-run", usage=USAGE, allow_abbrev=False, add_help=False)
    options.add_argument("--weight", type=float, default=1.0, metavar="W")
    options.add_argument("--min-nodes", type=int, metavar="N")
    options.add_argument("--max-nodes", type=int, metavar="N")
    options.add_argument("--ranks-per-node", type=int, metavar="N")
    options.add_argument("--name", default="", metavar="NAME")
    return options


def parse(arguments: Sequence[str], nodes: int, job_name: str) -> Spec:
    """`nodes` is N, the number of nodes of the job. Raises BadInput."""
    options, program = _split(arguments)
    given = parser().parse_args(options)
    spec = Spec(
        weight=given.weight,
        min_nodes=nodes if given.min_nodes is None else given.min_nodes,
        max_nodes=nodes if given.max_nodes is None else given.max_nodes,
        ranks_per_node=0 if given.ranks_per_node is None else given.ranks_per_node,
        name=given.name or job_name,
        program=tuple(program),
    )
    _check(spec, nodes, fewest_ranks=0 if given.ranks_per_node is None else 1)
    return spec


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in arguments:
        raise BadInput(f"no program given: write it after `--`; usage: {USAGE}")
    cut = list(arguments).index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _check(spec: Spec, nodes: int, fewest_ranks: int) -> None:
    if not spec.program:
        raise BadInput(f"no program given: nothing follows `--`; usage: {USAGE}")
    if not (math.isfinite(spec.weight) and spec.weight > 0):
        raise BadInput(f"--weight {spec.weight:g}: must be a number above 0, such as 1 or 2.5")
    if spec.min_nodes < 1:
        raise BadInput(f"--min-nodes {spec.min_nodes}: must be 1 or more")
    if spec.min_nodes > nodes:
        raise BadInput(
            f"--min-nodes {spec.min_nodes}: the job has {nodes} nodes;"
            f" give {nodes} or less, or ask sbatch for more with -N"
        )
    if spec.max_nodes < spec.min_nodes:
        raise BadInput(
            f"--max-nodes {spec.max_nodes}: is below --min-nodes {spec.min_nodes};"
            " raise the one or lower the other"
        )
    if not fewest_ranks <= spec.ranks_per_node <= 1024:
        raise BadInput(f"--ranks-per-node {spec.ranks_per_node}: must be between 1 and 1024")
    if len(spec.name) > 200 or not spec.name.isprintable():
        raise BadInput("--name: must be at most 200 printable characters")
