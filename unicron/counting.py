"""Counts the FLOPs of a train step once a generation; torch's own counter, on the calls it knows.

The first train step of a generation is left alone (it warms up), the second one is counted, inside
a phase of its own: so no measured iteration is slowed down by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from unicron import page

COUNTED_STEP = 2

_generation_ns = -1  # when its process group was joined
_steps = 0


@contextlib.contextmanager
def counted_once() -> Iterator[None]:
    global _generation_ns, _steps
    mine = page.of_this_process()
    if mine is None:
        yield
        return
    if mine.joined_ns != _generation_ns:
        _generation_ns, _steps = mine.joined_ns, 0
    _steps += 1
    if _steps != COUNTED_STEP:
        yield
        return
    from torch.utils.flop_counter import FlopCounterMode

    before = mine.enter("flops")
    try:
        with FlopCounterMode(display=False) as counter:
            yield
        mine.computed(float(counter.get_total_flops()))
    finally:
        mine.enter(before)
