"""Stands in for training, in milliseconds: ranks go from step to step together through rank 0.

A step is complete when every rank came to it, so a line of a later step proves that all of them
live; as in real training, whoever misses another rank waits, or fails when its connection breaks.
Rank 0 keeps the checkpoint; every rank writes a line a step. All end with 0 after the last step,
or once there is a file `finish`. Standard library only.

    steps.jsonl       {"step", "rank", "world", "generation", "node", "pid", "time"}
    checkpoint.json   {"step", "generation"}
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ["UNICRON_GENERATION"])
CHECKPOINT = Path("checkpoint.json")
PATIENCE_SECONDS = 60.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--alone", action="store_true", help="ranks do not wait for each other")
    parser.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    parser.add_argument("--end", nargs=3, type=int, metavar=("RANK", "STEP", "CODE"))
    parser.add_argument("--always", action="store_true", help="--end in each generation")
    parser.add_argument("--last-words", default="")
    return parser.parse_args()


class Together:
    """The connections of rank 0 to all others, or of another rank to rank 0."""

    def __init__(self) -> None:
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if RANK:
            self._ends = [_dial(address)]
            return
        with socket.create_server(("", address[1])) as server:
            server.settimeout(PATIENCE_SECONDS)
            self._ends = [server.accept()[0] for _ in range(WORLD - 1)]

    def step(self, last: bool) -> bool:
        """Rank 0 hears all, then tells all whether this step was the last one."""
        if RANK:
            self._ends[0].sendall(b".")
        for end in self._ends:
            heard = end.recv(1)
            if not heard:
                raise SystemExit("Connection closed by peer")
            last = heard == b"!" if RANK else last
        if not RANK:
            for end in self._ends:
                end.sendall(b"!" if last else b".")
        return last


def _dial(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            end = socket.create_connection(address, 2)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
            continue
        end.settimeout(None)
        return end


def main() -> None:
    options = parse()
    if options.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first = json.loads(CHECKPOINT.read_text())["step"] if CHECKPOINT.exists() else 0
    together = None if options.alone or WORLD == 1 else Together()
    for step in itertools.count(first + 1):
        time.sleep(options.step_seconds)
        last = step == options.steps or Path("finish").exists()
        if together:
            last = together.step(last)
        write(step)
        if options.end and (RANK, step) == tuple(options.end[:2]) and may_end(options.always):
            print(options.last_words, file=sys.stderr, flush=True)
            sys.exit(options.end[2])
        if last:
            return


def may_end(always: bool) -> bool:
    return always or GENERATION == 1


def write(step: int) -> None:
    line = {
        "step": step, "rank": RANK, "world": WORLD, "generation": GENERATION,
        "node": os.environ["SLURMD_NODENAME"], "pid": os.getpid(), "time": time.time(),
    }  # fmt: skip
    with Path("steps.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    if RANK == 0 and step % 5 == 0:
        partial = Path(f"checkpoint.{os.getpid()}")
        partial.write_text(json.dumps({"step": step, "generation": GENERATION}))
        partial.replace(CHECKPOINT)


if __name__ == "__main__":
    main()
