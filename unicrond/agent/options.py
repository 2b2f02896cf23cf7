"""The user's wishes: `[options] -- program arguments`, checked before anything starts. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from unicrond.errors import BadInput
from unicrond.link.messages import MOST_NODES, MOST_WEIGHT
from unicrond.model.workload import PLAIN, BatchScaling, Layout, Workload

USAGE = "unicron-run [options] -- program [arguments]"
MOST_LAYOUTS = 64


@dataclass(frozen=True, slots=True)
class Spec:
    """What one run asks for. `ranks_per_node` 0 means: one for each GPU of the node."""

    weight: float
    min_nodes: int
    max_nodes: int
    ranks_per_node: int
    name: str
    program: tuple[str, ...]
    workload: Workload = PLAIN


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
    options.add_argument("--flops-per-iteration", type=float, metavar="F")
    options.add_argument("--parameters", type=float, metavar="P")
    options.add_argument("--micro-batches", type=int, metavar="M")
    options.add_argument("--layouts", default="1x1", metavar="TPxPP,...")
    scalings = [scaling.value for scaling in BatchScaling]
    options.add_argument("--batch-scaling", choices=scalings, default=BatchScaling.PER_RANK.value)
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
        workload=_workload(given),
    )
    _check(spec, nodes, fewest_ranks=0 if given.ranks_per_node is None else 1)
    return spec


def _workload(given: argparse.Namespace) -> Workload:
    for name, low, high in (
        ("flops_per_iteration", 0.0, 1e30), ("parameters", 0.0, 1e30), ("micro_batches", 0, 10**6)
    ):  # fmt: skip
        value = getattr(given, name)
        if value is not None and not low < value <= high:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(f"{option} {value:g}: must be above 0, at most {high:g}")
    return Workload(
        flops_per_iteration=given.flops_per_iteration or 0.0,
        scaling=BatchScaling(given.batch_scaling),
        micro_batches=given.micro_batches or 0,
        parameters=given.parameters or 0.0,
        layouts=_layouts(given.layouts),
    )


def _layouts(text: str) -> tuple[Layout, ...]:
    """ "8x1,8x2": tensor-parallel times pipeline-parallel workers of a replica."""
    pairs = [word.split("x") for word in text.split(",")]
    if len(pairs) > MOST_LAYOUTS or not all(map(_is_layout, pairs)):
        raise BadInput(
            f"--layouts {text}: write tensor x pipeline parallel workers, such as 8x1,8x2; "
            f"at most {MOST_LAYOUTS} of them, of 1 to 1024 each"
        )
    return tuple(Layout(int(tensor), int(pipeline)) for tensor, pipeline in pairs)


def _is_layout(pair: Sequence[str]) -> bool:
    return len(pair) == 2 and all(
        word.isascii() and word.isdigit() and 1 <= int(word[:5]) <= 1024 for word in pair
    )


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in arguments:
        raise BadInput(f"no program given: write it after `--`; usage: {USAGE}")
    cut = list(arguments).index("--")
    return arguments[:cut], arguments[cut + 1 :]


def _check(spec: Spec, nodes: int, fewest_ranks: int) -> None:
    if not spec.program:
        raise BadInput(f"no program given: nothing follows `--`; usage: {USAGE}")
    if not 0 < spec.weight <= MOST_WEIGHT:
        raise BadInput(
            f"--weight {spec.weight:g}: must be a number above 0, such as 1 or 2.5,"
            f" and at most {MOST_WEIGHT:.0f}"
        )
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
    if spec.max_nodes > MOST_NODES:
        raise BadInput(f"--max-nodes {spec.max_nodes}: must be at most {MOST_NODES}")
    if not fewest_ranks <= spec.ranks_per_node <= 1024:
        raise BadInput(f"--ranks-per-node {spec.ranks_per_node}: must be between 1 and 1024")
    if len(spec.name) > 200 or not spec.name.isprintable():
        raise BadInput(
            "--name, or the job's name where it is not given: must be at most 200 printable"
            " characters"
        )
