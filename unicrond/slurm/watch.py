"""Looks at Slurm again and again, in a process of its own, so that reading never delays the loop.

    python -m unicrond.slurm.watch --interval 2 --timeout 10 [-- PREFIX ...]

One JSON line a snapshot (codec.py) on stdout. Ends when stdin does, that is with its parent; with
`</dev/null` it looks once. PREFIX is what goes before each Slurm command.
"""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Sequence

from unicrond.model.cluster import Snapshot
from unicrond.slurm.cli import CommandLineSlurm
from unicrond.slurm.codec import Encoder, Look

SHARE = 5  # at most a fifth of the time is spent asking
MAX_PAUSE_SECONDS = 30.0


class SystemClock:
    def now(self) -> float:
        return time.time()


def pause_seconds(interval: float, took: float) -> float:
    """Longer when slurmctld is slow: what it is busy with goes before our curiosity."""
    between_starts = max(interval, min(SHARE * took, MAX_PAUSE_SECONDS))
    return max(between_starts - took, 0.0)


def watch(slurm: CommandLineSlurm, interval: float) -> None:
    """Until stdin ends or nobody reads stdout any more."""
    encoder = Encoder()
    while True:
        snapshot, took = _look(slurm)
        pause = pause_seconds(interval, took)
        print(encoder.encode(Look(snapshot, pause)), flush=True)
        if _parent_gone_within(pause):
            return


def _look(slurm: CommandLineSlurm) -> tuple[Snapshot, float]:
    started = time.monotonic()
    snapshot = slurm.snapshot()
    return snapshot, time.monotonic() - started


def _parent_gone_within(seconds: float) -> bool:
    """Waits; a parent never writes, so stdin is readable only when it is gone."""
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="unicrond.slurm.watch", description="Watches Slurm.")
    parser.add_argument("--interval", type=_seconds, default=2.0, help="seconds between looks")
    parser.add_argument("--timeout", type=_seconds, default=10.0, help="seconds for one command")
    parser.add_argument("prefix", nargs="*", help="goes before each Slurm command")
    return parser.parse_args(argv)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 3600 seconds")
    return value


def main(argv: Sequence[str] | None = None) -> int:
    asked = _arguments(argv)
    try:
        watch(CommandLineSlurm(SystemClock(), asked.prefix, asked.timeout), asked.interval)
    except (BrokenPipeError, KeyboardInterrupt):
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
