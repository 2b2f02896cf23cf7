"""How fast and how right the detectors are on text: one JSON object, exit code 1 off a goal.

    python bench/detection_text.py

Speed: 100,000 log lines of 120 bytes, 1 in 1,000 a failure, one core, in process.
Rightness: the labelled messages and incidents that the tests carry.
May touch: the clock, files of tests/data, git.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from detectors.classification import classify  # noqa: E402
from tests.data.signals.labelled import Message, messages  # noqa: E402

LINES = 20_000  # a repeat
REPEATS = 5
LENGTH = 120
FAILURE = (
    "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1201, OpType=ALLREDUCE, NumelIn=4096)"
)
ORDINARY = (
    " iteration {:7d}/  500000 | consumed samples: 256000 | elapsed time per iteration (ms): 412.1 "
    "| lm loss: 6.912311E+00 | grad norm: 1.1",
    "[2024-05-12 03:11:09,112] [INFO] [timer.py:260:stop] epoch=0/micro_step=20/global_step={}, "
    "RunningAvgSamplesPerSec=12.1, MemAllocated=12.2GB",
    "node1:9:30 [0] NCCL INFO Channel {}/0 : 0[0] -> 1[1] via P2P/CUMEM/read comm 0x55d0 nRanks 16 "
    "busId 4e000 commId 0x1234567890ab",
    "May 12 03:11:09 node1 systemd[1]: Started Session {} of user alice, slice user-1000.slice, "
    "scope session-1.scope, seat seat0",
    "step {} | loss 2.113 | lr 3.0e-4 | tokens/s 123456 | mfu 41.2% | mem 71.2 GiB | data 0.01 s "
    "| fwd 0.11 s | bwd 0.22 s | opt 0.03 s",
)


def main() -> None:
    rates = [lines_per_second() for _ in range(REPEATS)]
    figures = [
        figure("lines classified", "1/s", 100_000, "higher", rates),
        *(figure(*row) for row in rightness(list(messages()))),
    ]
    print(json.dumps(report(figures), indent=1))
    sys.exit(0 if all(one["ok"] for one in figures) else 1)


def lines_per_second() -> float:
    lines = [
        (FAILURE if i % 1000 == 0 else ORDINARY[i % len(ORDINARY)].format(i))[:LENGTH].ljust(LENGTH)
        for i in range(LINES)
    ]
    start = time.process_time()
    found = sum(classify("application log", line).is_failure for line in lines)
    elapsed = time.process_time() - start
    if found != LINES // 1000:
        raise SystemExit(f"found {found} failures instead of {LINES // 1000}")
    return LINES / elapsed


def rightness(known: list[Message]) -> list[tuple[str, str, float, str, list[float]]]:
    verdicts = [(one, classify(one.source_kind, one.text)) for one in known]
    harmless = [verdict for one, verdict in verdicts if one.severity == "NONE"]

    def share(right: list[bool]) -> list[float]:
        return [sum(right) / len(right)]

    return [
        ("kind right", "", 0.9, "higher", share([v.kind == one.kind for one, v in verdicts])),
        ("severity right", "", 0.95, "higher",
         share([v.severity == one.severity for one, v in verdicts])),
        ("blame right", "", 0.9, "higher", share([v.blame == one.blame for one, v in verdicts])),
        ("harmless taken for failures", "", 0.02, "lower", share([v.is_failure for v in harmless])),
    ]  # fmt: skip


def figure(
    name: str, unit: str, goal: float, better: str, values: list[float]
) -> dict[str, object]:
    value = statistics.median(values)
    ok = value >= goal if better == "higher" else value <= goal
    return {
        "name": name, "value": round(value, 3), "unit": unit, "goal": goal, "better": better,
        "ok": ok, "n": len(values), "min": round(min(values), 3), "median": round(value, 3),
        "max": round(max(values), 3),
    }  # fmt: skip


def report(figures: list[dict[str, object]]) -> dict[str, object]:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True, text=True, timeout=10, check=False,
    ).stdout.strip()  # fmt: skip
    return {
        "name": "detection_text",
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit,
        "machine": platform.machine(),
        "versions": {"python": platform.python_version()},
        "figures": figures,
        "notes": "rightness is on the messages that the rules are written from, not on unseen ones",
    }


if __name__ == "__main__":
    main()
