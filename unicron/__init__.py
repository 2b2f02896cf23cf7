"""What a training script may import. On the standard library; torch only where the script uses it.

    import unicron
    unicron.heartbeat(step, loss)            a train step is complete; the loss may be left out
    with unicron.phase("checkpoint"): ...    the next iteration may take longer than usual

Scripts that import nothing are watched all the same (unicron/watch.py). Outside a run of Unicron
both calls do nothing, and say so once.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from unicron import page

__all__ = ["heartbeat", "inside", "phase"]

_said = False


def inside() -> bool:
    """Whether this process is a rank of a run that Unicron looks after."""
    return page.of_this_process() is not None


def heartbeat(step: int, loss: float | None = None) -> None:
    """Tells that train step `step` is complete. Costs some microseconds; never blocks.

    Once called, it replaces the iterations that are counted from torch's optimizer. With a `loss`,
    NaN and spikes are noticed. Give a number that you have anyway: one that is still on the GPU
    makes this call wait for it.
    """
    mine = page.of_this_process()
    if mine is None:
        _say_once()
        return
    mine.explicit = True
    mine.iterated(step, None if loss is None else float(loss))


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


def _say_once() -> None:
    global _said
    if not _said:
        _said = True
        print("unicron: not inside a run of Unicron, doing nothing", file=sys.stderr)
