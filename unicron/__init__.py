"""What a training script may import. On the standard library; torch only where the script uses it.

    import unicron
    unicron.heartbeat(step, loss)            a train step is complete; the loss may be left out
    with unicron.phase("checkpoint"): ...    the next iteration may take longer than usual
    with unicron.flops(): ...                around a train step: counts its FLOPs, once
    unicron.checkpoint(state, step)          keeps a copy in memory that outlives this process
    unicron.restore(state)                   the newest of these copies, in whatever rank it is
    @unicron.elastic                         def train(run): entered anew when the world changes

Scripts that import nothing are watched all the same (unicron/watch.py). Outside a run of Unicron
the first three do nothing, and say so once; docs/training.md has the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unicron import page

__all__ = ["Run", "checkpoint", "elastic", "flops", "heartbeat", "inside", "phase", "restore"]

_said = False
before_next_step: Callable[[], None] | None = None  # raises when the generation is over


@dataclass
class Run:
    """What a training function is told of the generation that it is entered for. In the strict
    loop below, whose function is not left, it follows the generations.

        for step in run.steps(last, state, micro_batches=16):
            for number in run.micro_batches(step):
                loss(number).backward()
            if run.reduce():
                optimizer.step()
                run.commit()
    """

    generation: int
    rank: int
    world_size: int
    local_rank: int
    entered: int  # how often this process entered before
    elastic: Any = field(default=None, repr=False, compare=False)  # leaves and forms generations
    _strict: Any = field(default=None, repr=False, compare=False)

    def steps(
        self,
        last: int,
        state: MutableMapping[str, Any],
        micro_batches: int,
        folder: str | Path | None = None,
        keeps_local_sums: bool = True,
    ) -> Iterator[int]:
        """Train steps up to `last`, counted from 1, after what `restore(state, folder)` finds.

        `state` is that of `checkpoint`, the same on all ranks; parameters of its modules are
        trained. `micro_batches`: of one train step, over all ranks, whatever the world's size; give
        each a weight of its part of the whole, as gradients are summed up. When members are lost,
        survivors compute what these had, in the same train step: it may come twice, for what is
        left. Local sums of gradients are kept for that, and take their memory once more; without
        them (`keeps_local_sums=False`) a failure amid `reduce` repeats the train step.
        """
        from unicron.loop import Loop

        self._strict = Loop(self, state, micro_batches, folder, keeps_local_sums)
        return self._strict.steps(last)  # type: ignore[no-any-return]

    def alone(self) -> Any:
        """A process group of this rank only: in it a DistributedDataParallel may stay as it is,
        and is made once; `reduce` sums up over ranks."""
        from unicron.together import alone

        return alone(self.rank)

    def micro_batches(self, step: int) -> Iterator[int]:
        """Numbers, from 0, of those that this rank is to compute; make data from `step` and the
        number alone. torch's random generators are seeded with both before each."""
        return self._strict.micro_batches(step)  # type: ignore[no-any-return]

    def reduce(self) -> bool:
        """Sums up gradients over all ranks; then step the optimizer and `commit`. False: do
        neither, others were lost or are ahead; `steps` has what comes next."""
        return bool(self._strict.reduce())

    def commit(self, loss: float | None = None, to_disk: bool = False) -> None:
        """The train step is complete: a heartbeat, and now and then a copy in memory."""
        self._strict.commit(loss, to_disk)


def inside() -> bool:
    """Whether this process is a rank of a run that Unicron looks after."""
    return page.of_this_process() is not None


def heartbeat(step: int, loss: float | None = None) -> None:
    """Tells that train step `step` is complete. Costs some microseconds; never blocks.

    Once called, it replaces the iterations that are counted from torch's optimizer. With a `loss`,
    NaN and spikes are noticed. Give a number that you have anyway: one that is still on the GPU
    makes this call wait for it.

    In an elastic function it is also where a rank leaves a world that is over, by an exception that
    the function must let pass: so keep a checkpoint of the step before.
    """
    mine = page.of_this_process()
    if mine is None:
        _say_once()
    else:
        mine.explicit = True
        mine.iterated(step, None if loss is None else float(loss))
    if before_next_step is not None:
        before_next_step()


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Marks work that is no ordinary iteration: "checkpoint", "evaluation", "data" ...

    Each name has limits of its own, learned from its earlier occurrences. Phases may nest.
    """
    mine = page.of_this_process()
    if mine is None:
        _say_once()
        yield
        return
    before = mine.enter(name)
    try:
        yield
    finally:
        mine.enter(before)


def flops() -> contextlib.AbstractContextManager[None]:
    """Around a whole train step: its second one in each generation is counted, with torch's
    FlopCounterMode, and slower for it; around all others this costs a microsecond. Plans then know
    what the run computes. Not for steps that torch.compile or CUDA graphs run: use `unicron-run
    --flops-per-iteration` there.
    """
    from unicron.counting import counted_once

    return counted_once()


def checkpoint(state: Mapping[str, Any], step: int, folder: str | Path | None = None) -> None:
    """Keeps `state` as it is after train step `step`. Call it on all ranks; one a node copies.

    `state` names modules, optimizers, schedulers (whatever has a `state_dict`) and plain values. It
    must be the same on all ranks, but for DTensors (FSDP2, HSDP, tensor parallel): of these each
    rank copies its own. With a `folder` the copy is also written there, behind training's back;
    that works outside a run too. Trouble with memory or disk is told on stderr.
    """
    if not _keeps(folder):
        return
    with phase("checkpoint") if inside() else contextlib.nullcontext():
        _keeper_of(state).checkpoint(state, step, Path(folder) if folder else None)


def restore(state: MutableMapping[str, Any], folder: str | Path | None = None) -> int | None:
    """Loads the newest copy of `state` that any rank can reach, or that lies in `folder`.

    Call it on all ranks, after the process group is there. Modules and the like are loaded in
    place, plain values replaced in `state`. What is divided over ranks may have been kept by more
    or fewer of them. The train step of the copy; None if there is none.
    """
    if not _keeps(folder):
        return None
    found = _keeper_of(state).restore(state, Path(folder) if folder else None)
    return found.step if found else None


def elastic(
    train: Callable[..., Any] | None = None,
    *,
    backend: str = "",
    timeout_seconds: float = 1800.0,
) -> Callable[..., Any]:
    """Decorates `train(run, ...)`, which is then called without `run`, once, by every rank.

    It is entered with the process group made, and entered again, in the same process, whenever the
    agent says that the world has changed: so it makes its model anew, and restores. `backend`: gloo
    or nccl, default what there is. `timeout_seconds`: of a collective. Outside a run it is entered
    once: under torchrun with that world, else alone.
    """
    if train is None:
        return functools.partial(elastic, backend=backend, timeout_seconds=timeout_seconds)

    @functools.wraps(train)
    def enter(*args: Any, **options: Any) -> Any:
        from unicron.generations import Elastic, collective_for

        if not inside():
            _say_once()
        return Elastic(collective_for(backend), timeout_seconds)(train, *args, **options)

    return enter


def _keeper_of(state: Mapping[str, Any]) -> Any:
    """What is the same on all ranks is kept once a node; what is divided, in parts."""
    if "torch.distributed.tensor" in sys.modules:  # else nothing is
        from unicron import parts, sharded

        if parts.is_divided(state):
            return sharded.of_this_process()
    from unicron import warm

    return warm.of_this_process()


def _keeps(folder: str | Path | None) -> bool:
    """In a run there is memory to keep copies in; else only rank 0 writes, and only to disk."""
    if os.environ.get("UNICRON_ARENA"):
        return True
    _say_once()
    return folder is not None


def _say_once() -> None:
    global _said
    if not _said:
        _said = True
        print("unicron: not inside a run of Unicron, doing nothing", file=sys.stderr)
