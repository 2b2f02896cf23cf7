"""What keeping a copy costs the thread that trains: `unicron.checkpoint`, a memcpy, `torch.save`.

May touch: memory in /dev/shm, a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.nursery import ROOT

TENSORS, ELEMENTS = 20, 6_250_000  # 500 MB of float32
LIMIT_SECONDS = 240.0
PROGRAM = """
import json, sys, time, torch
from pathlib import Path
from unicron.warm import Warm
folder, rounds, tensors, elements = Path(sys.argv[1]), *map(int, sys.argv[2:])
torch.set_num_threads(1)
state = {str(n): torch.full((elements,), float(n)) for n in range(tensors)}
spare = [torch.full_like(one, 1.0) for one in state.values()]
warm = Warm(folder / "arena")
found = {"checkpoint": [], "memcpy": [], "torch.save": []}
def timed(name, work):
    begun = time.perf_counter()
    work()
    found[name].append(time.perf_counter() - begun)
def memcpy():
    for mine, one in zip(spare, state.values()):
        mine.copy_(one)
for number in range(rounds + 2):
    timed("checkpoint", lambda: warm.checkpoint(state, number + 1, None))
    warm.settle()
    timed("memcpy", memcpy)
    if number < rounds // 2:
        timed("torch.save", lambda: torch.save(state, folder / "saved.pt"))
warm.close()
found["checkpoint"], found["memcpy"] = found["checkpoint"][2:], found["memcpy"][2:]
print(json.dumps(found))
"""  # the first two fill both slots


def measure(rounds: int) -> dict[str, list[float]]:
    """Seconds of each, by name."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        arguments = [folder, str(rounds), str(TENSORS), str(ELEMENTS)]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True,
            check=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    assert not Path(folder).exists()
    return found
