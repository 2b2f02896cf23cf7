"""What a training script may import. On the standard library; torch only where the script uses it.

    import unicron
    unicron.heartbeat(step)                  a train step is complete
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


def heartbeat(iteration: int) -> None:
    """Tells that train step `iteration` is complete. Costs about a microsecond; never blocks.

    Once called, it replaces the iterations that are counted from torch's optimizer.
    """
    mine = page.of_this_process()
    if mine is None:
        _say_once()
        return
    mine.explicit = True
    mine.iterated(iteration)


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
