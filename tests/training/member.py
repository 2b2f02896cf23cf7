"""A process that does with one Collective what it is told on stdin, a line an order.

    form GENERATION RANK WORLD PORT, reduce N, divide, leave    by the main thread, in turn
    revoke GENERATION                                           by another thread, at once
    count                                                       threads and descriptors

It answers each with a line of JSON: `did`, `error`, `seconds`, `value`.
"""

from __future__ import annotations

import gc
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from unicron.collective import Place
from unicron.errors import UnicronError
from unicron.generations import collective_for

LOCK = threading.Lock()
COLLECTIVE = collective_for(sys.argv[1])
DEVICE = "cuda" if sys.argv[1] == "nccl" else "cpu"


def form(generation: str, rank: str, world: str, port: str) -> None:
    place = Place(int(generation), int(rank), int(world), 0, "127.0.0.1", int(port), rank == "0")
    COLLECTIVE.form(place, timeout_seconds=600.0)


def reduce(elements: str) -> float:
    whole = torch.ones(int(elements), device=DEVICE)
    dist.all_reduce(whole)
    return float(whole[0])


def divide() -> float:
    """A group of its own, as tensor parallelism makes them."""
    part = dist.new_group(list(range(dist.get_world_size())))
    whole = torch.ones(1, device=DEVICE)
    dist.all_reduce(whole, group=part)
    return float(whole)


def count() -> list[int]:
    gc.collect()
    return [sum(1 for _ in Path(f"/proc/self/{kind}").iterdir()) for kind in ("task", "fd")]


def answer(words: list[str], work: Callable[..., Any]) -> None:
    began, error, value = time.monotonic(), "", None
    try:
        value = work(*words[1:])
    except (RuntimeError, ValueError, OSError, UnicronError) as caught:
        error = f"{type(caught).__name__}: {caught}"
    seconds = round(time.monotonic() - began, 4)
    with LOCK:
        print(
            json.dumps({"did": words[0], "error": error, "seconds": seconds, "value": value}),
            flush=True,
        )


def listen(orders: queue.Queue[list[str]]) -> None:
    for line in sys.stdin:
        words = line.split()
        if words[0] == "revoke":
            answer(words, lambda generation: COLLECTIVE.revoke(int(generation)))
        else:
            orders.put(words)
    os._exit(0)


def main() -> None:
    torch.set_num_threads(1)
    orders: queue.Queue[list[str]] = queue.Queue()
    threading.Thread(target=listen, args=(orders,), daemon=True).start()
    work = {
        "form": form,
        "reduce": reduce,
        "divide": divide,
        "leave": COLLECTIVE.leave,
        "count": count,
    }
    answer(["started"], lambda: None)
    while True:
        words = orders.get()
        answer(words, work[words[0]])


main()
