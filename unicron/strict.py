"""A training loop that survives inside the train step: `run.steps`, `micro_batches`, `reduce`,
`commit`. For state that is the same on all ranks (DDP, HSDP's replicas). Uses torch.

    steps ─> micro_batches ─> reduce ─> [the script's optimizer step] ─> commit ─> steps ...
                  │ the generation is over, or a collective fails
                  v
    the next generation ─> all tell where they stand ─> state, complete buckets, shares
                  │ it fails too: the next one

What a member holds is told by `Standing`, how all go on is worked out by unicron/dealing.py. State
is received whole before it is loaded: whoever receives it keeps its own until then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor

from unicron import state as states
from unicron.dealing import NOTHING, Plan, Standing, deal, reconcile
from unicron.errors import Revoked
from unicron.gradients import Gradients, Work

CHUNK_BYTES = 1 << 28
MOST_RECOVERIES = 100  # in a row, without a train step of progress
SEEDS = 1 << 63


class Group(Protocol):
    """The members of one generation, and the way into the next."""

    @property
    def generation(self) -> int: ...

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def next_is_there(self) -> bool:
        """Whether the next generation can be formed. Never blocks."""

    def regroup(self, error: Exception) -> None:
        """Forms the next generation; raises `error` when none comes, or it is nobody's fault but
        the script's."""

    def exchange(self, mine: Any) -> list[Any]:
        """By rank."""

    def reduce(self, whole: Tensor) -> Work:
        """Begins to sum it up in place, over all members."""

    def hand_on(self, part: Tensor, source: int) -> None:
        """From that rank to all, in place."""


class Strict:
    """`count`: micro-batches of a train step, over all ranks. `found` is called when no member
    holds state, by all: it loads what is kept, and returns its train step, 0 for none."""

    def __init__(
        self,
        group: Group,
        state: MutableMapping[str, Any],
        count: int,
        found: Callable[[], int],
        keeps: bool = True,
    ) -> None:
        if count < 1:
            raise ValueError(f"micro_batches is {count}: give how many a train step has, of all")
        self._group, self._state, self._count, self._found = group, state, count, found
        modules = [part for part in state.values() if isinstance(part, torch.nn.Module)]
        self._gradients = Gradients([p for m in modules for p in m.parameters()], keeps)
        if not self._gradients.layout:
            raise ValueError("`state` holds no module with parameters to train: name yours in it")
        self._step, self._met = NOTHING, NOTHING
        self._share: list[int] = []
        self._done: set[int] = set()
        self._yielded = NOTHING
        self._reduced = False
        self._recoveries = 0

    # what the script calls
    def steps(self, last: int) -> Iterator[int]:
        """Up to `last`, counted from 1. One that lost a member may come again, for what is left."""
        if self._step == NOTHING:
            self._try(self._agree)
        while True:
            if self._step > last:
                if self._try(self._end_together):
                    return
                continue
            if self._yielded == self._step and self._reduced:
                raise RuntimeError(f"train step {self._step} was reduced: call commit() after it")
            self._yielded, self._reduced = self._step, False
            yield self._step
            self._count_recovery(self._yielded == self._step)

    def micro_batches(self, step: int) -> Iterator[int]:
        """Those of `step` that fall to this rank; more when others are lost meanwhile."""
        if step != self._yielded or self._reduced:
            raise RuntimeError(f"micro_batches({step}): call it once for each step of steps()")
        self._gradients.begin()
        while True:
            self._look()
            if self._step != step or not self._share:
                return
            number = self._share[0]
            _seed(step, number)
            yield number
            self._done.add(self._share.pop(0))

    def reduce(self) -> bool:
        """Sums gradients over all micro-batches of all ranks. True: step the optimizer and commit.
        False: go on to what steps() has next, as others were lost, or are ahead."""
        self._gradients.pause()
        while self._is_mine():
            if self._share:
                return False
            if self._try(self._reduce):
                self._gradients.use()
                self._reduced = True
                return True
        return False

    def commit(self) -> int:
        """The optimizer has stepped: the train step counts. Which it was."""
        if not self._reduced or not self._is_mine():
            raise RuntimeError("commit() after reduce() was not True: step only if it is")
        self._reduced = False
        self._recoveries = 0
        self._enter(self._step + 1)
        self._share = list(deal(self._step, self._count, self._group.size)[self._group.rank])
        return self._step - 1

    # what happens meanwhile
    def _is_mine(self) -> bool:
        return self._step == self._yielded

    def _reduce(self) -> None:
        if self._group.next_is_there():
            raise Revoked("the next generation is there")
        self._gradients.reduce(self._group.reduce)

    def _look(self) -> None:
        if self._group.next_is_there():
            self._gradients.pause()
            self._recover(Revoked("the next generation is there"))
            self._gradients.begin()

    def _end_together(self) -> None:
        """Nobody goes before all have all train steps: who has not copies them."""
        self._group.exchange(self._standing())

    def _try(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whose fault it is, `regroup` finds out
            self._recover(error)
            return False
        return True

    def _recover(self, error: Exception) -> None:
        for _ in range(MOST_RECOVERIES):
            self._gradients.drop_works()
            self._group.regroup(error)
            if not self._gradients.kept:
                self._gradients.forget_local()
                self._done.clear()
            try:
                self._agree()
            except Exception as another:  # noqa: BLE001 - as above
                error = another
                continue
            return
        raise error

    def _count_recovery(self, again: bool) -> None:
        self._recoveries = self._recoveries + 1 if again else 0
        if self._recoveries > MOST_RECOVERIES:
            raise RuntimeError(
                f"train step {self._step} came {self._recoveries} times: the loop must call "
                "micro_batches(), then reduce(), and commit() if that is True"
            )

    def _standing(self) -> Standing:
        done = tuple(sorted(self._done)) if self._gradients.kept else ()
        share = tuple(self._share)
        return Standing(self._step, self._met, share, done, self._gradients.complete)

    # how members of a new generation come to stand alike
    def _agree(self) -> None:
        mine = (self._count, self._gradients.layout, self._standing())
        told = self._group.exchange(mine)
        if any(other[:2] != mine[:2] for other in told):
            raise ValueError("ranks differ in micro_batches or in the model: start all alike")
        plan = reconcile([one[2] for one in told], self._count, len(mine[1]))
        if plan is None:
            return self._begin()
        if self._group.rank not in plan.copiers:
            self._met = self._group.generation
        if plan.copiers:
            self._hand_state_on(plan)
        for bucket, source in plan.buckets:
            self._group.hand_on(self._gradients.sum_of(bucket), source)
            self._gradients.completed(bucket)
        self._share = list(plan.shares[self._group.rank])
        return None

    def _begin(self) -> None:
        """Nobody holds state: from what is kept, or from what rank 0 has made."""
        step = self._found() + 1
        shares = deal(step, self._count, self._group.size)
        if step == 1:
            others = frozenset(range(1, self._group.size))
            self._hand_state_on(Plan(step, 0, others, (), tuple(shares)))
        self._met = self._group.generation
        self._enter(step)
        self._share = list(shares[self._group.rank])

    def _hand_state_on(self, plan: Plan) -> None:
        has = self._group.rank == plan.source
        description, data = self._collected() if has else (b"", memoryview(b""))
        description, size = self._group.exchange((description, len(data)))[plan.source]
        if not has:
            data = memoryview(bytearray(size))
        for start in range(0, size, CHUNK_BYTES):
            part = torch.frombuffer(data[start : start + CHUNK_BYTES], dtype=torch.uint8)
            self._group.hand_on(part, plan.source)
        if self._group.rank in plan.copiers:
            self._step = self._met = NOTHING
            states.load(self._state, description, data)
            self._met = self._group.generation
            self._enter(plan.step)

    def _collected(self) -> tuple[bytes, memoryview]:
        skeleton, tensors = states.collect(self._state)
        description, size = states.describe(skeleton, tensors)
        data = memoryview(bytearray(size))
        with torch.no_grad():
            for copy, tensor in zip(states.views(description, data), tensors, strict=True):
                copy.copy_(tensor)
        return description, data

    def _enter(self, step: int) -> None:
        self._step = step
        self._share.clear()
        self._done.clear()
        self._gradients.clear()


def _seed(step: int, number: int) -> None:
    """Whoever computes a micro-batch draws the same random numbers. Generators alone: to seed all
    of torch takes a hundred times as long."""
    seed = (step * 0x9E3779B97F4A7C15 + number) % SEEDS
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
