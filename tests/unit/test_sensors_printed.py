"""What living ranks print, read behind them: found whatever surrounds it, and never at a price."""

from __future__ import annotations

from pathlib import Path

import pytest

from detectors.readings import Printed, Sighting
from detectors.verdict import Blame, Kind
from unicrond.agent.sensors import printed
from unicrond.agent.sensors.printed import PrintedLines
from unicrond.model.incident import Severity

QUIET = "2026-11-30 18:22:01 INFO iteration 1200/100000 | loss 2.3412 | grad norm 1.23 | 0.98 s\n"
TRACEBACK = """Traceback (most recent call last):
  File "/home/alice/train.py", line 31, in <module>
    loss.backward()
RuntimeError: CUDA error: an illegal memory access was encountered
"""
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 3 GiB\n"


class Ranks:
    """Files that grow, and the sensor that reads behind them, on a clock of their own."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        self.files = [folder / f"g1-rank{rank}.log" for rank in range(count)]
        self.now = 100.0
        self.sensor = PrintedLines(lambda: self.files, lambda: self.now)
        for path in self.files:
            path.touch()

    def print(self, text: str | bytes, rank: int = 0) -> None:
        with self.files[rank].open("ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def looks(self, seconds: float = 3.0) -> list[Sighting]:
        told: list[Sighting] = []
        for _ in range(int(seconds / printed.PAUSE_SECONDS)):
            told += self.sensor.look()
            self.now += printed.PAUSE_SECONDS
        return told


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    return Ranks(tmp_path)


def test_a_traceback_is_told_while_its_rank_lives_and_once(ranks: Ranks) -> None:
    ranks.print(QUIET * 10 + TRACEBACK + QUIET * 5)
    (said,) = ranks.looks()
    assert isinstance(said, Printed)
    assert (said.kind, said.severity, said.blame) == (
        Kind.ILLEGAL_ACCESS, Severity.SEV2, Blame.SELF,
    )  # fmt: skip
    assert (said.where, said.source) == ("g1-rank0.log", "output")
    assert "illegal memory access" in said.evidence
    assert ranks.looks() == []


def test_a_traceback_that_comes_line_by_line_is_judged_whole(ranks: Ranks) -> None:
    told: list[Sighting] = []
    for line in TRACEBACK.splitlines(keepends=True):
        ranks.print(line)
        told += ranks.looks(0.5)
    assert [said.kind for said in told + ranks.looks()] == [Kind.ILLEGAL_ACCESS]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("\x1b[31m" + OOM.strip() + "\x1b[0m\n", id="colours"),
        pytest.param("  3%|#  | 30/999 [00:01<00:32]\r" * 2000 + "\n" + OOM, id="progress bar"),
        pytest.param("step 1 of 9\r" + OOM, id="behind a bar"),
        pytest.param(b"\xff\xfe\x80 \xc3 broken\n" + OOM.encode() + b"\xe2\x82\n", id="broken"),
        pytest.param("x" * 700_000 + "\n" + OOM, id="a long line before it"),
        pytest.param("step 1\n" * 1000 + "y" * 40_000 + " " + OOM, id="in a long line"),
        pytest.param(QUIET * 3000 + OOM, id="much before it"),
        pytest.param(OOM + QUIET * 3000, id="much after it"),
        pytest.param("".join(a + b for a, b in zip((QUIET,) * 4, OOM.splitlines(True) * 4,
                                                   strict=True)), id="interleaved"),
    ],
)  # fmt: skip
def test_it_is_found_whatever_surrounds_it(ranks: Ranks, text: str | bytes) -> None:
    ranks.print(text)
    assert [said.kind for said in ranks.looks(8)] == [Kind.GPU_OOM]


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_above_two_megabytes_a_second_it_is_found_as_well(ranks: Ranks, where: str) -> None:
    much = QUIET * 20_000
    parts = {"first": OOM + much, "middle": much + OOM + much, "last": much + OOM}
    ranks.print(parts[where])
    assert [said.kind for said in ranks.looks(5)] == [Kind.GPU_OOM]


def test_a_line_without_its_end_is_read_once_its_rank_is_silent(ranks: Ranks) -> None:
    ranks.print(QUIET + OOM.strip())
    assert ranks.looks(0.5) == []
    assert [said.kind for said in ranks.looks()] == [Kind.GPU_OOM]
    assert ranks.sensor._ranks[ranks.files[0]].position == ranks.files[0].stat().st_size
    ranks.print("\n" + QUIET)
    assert ranks.looks() == []


def test_a_literal_across_two_chunks_is_found(ranks: Ranks) -> None:
    full = printed.FULL_BYTES_OF_ALL
    error = "RuntimeError: CUDA error: device-side assert triggered\n"
    filled = printed.CHUNK_BYTES - len("RuntimeEr")
    ranks.print(("." * (filled - 1) + "\n" + error).encode() + b"." * full)
    assert len(ranks.looks()) == 1


def test_harmless_lines_and_errors_that_no_rule_knows_are_not_told(ranks: Ranks) -> None:
    ranks.print(QUIET * 50)
    ranks.print("WARNING: retrying after a failed request to the metrics server\n")
    ranks.print("mean absolute error: 0.0031\nError: the flux capacitor hums\nKilled\n")
    assert ranks.looks(20) == []


def test_a_flood_is_judged_now_and_then_and_read_to_a_limit(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []
    real = printed.judge
    monkeypatch.setattr(printed, "judge", lambda *args: judged.append(1) or real(*args))
    for _ in range(40):
        ranks.print(OOM * 2000)
        list(ranks.sensor.look())
        ranks.now += printed.PAUSE_SECONDS
    assert printed.JUDGED_AT_ONCE <= len(judged) <= printed.JUDGED_AT_ONCE + 5


def test_where_reading_falls_behind_the_oldest_is_left_out(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, 2)
    for rank, path in enumerate(ranks.files):
        with path.open("wb") as file:
            file.truncate(printed.ROUND_BYTES * 2)
        ranks.print("\n" + OOM, rank)
    assert {said.where for said in ranks.looks()} == {path.name for path in ranks.files}
    behind = [rank.size - rank.position for rank in ranks.sensor._ranks.values()]
    assert max(behind) <= printed.AFTER_BYTES


def test_ranks_that_ended_are_forgotten_and_files_that_are_not_there_yet_wait(
    tmp_path: Path,
) -> None:
    ranks = Ranks(tmp_path, 2)
    ranks.print(QUIET)
    ranks.looks(1)
    ranks.files[:] = [tmp_path / "g2-rank0.log"]
    assert ranks.looks(1) == []
    ranks.print(OOM)
    assert [said.where for said in ranks.looks()] == ["g2-rank0.log"]


def test_a_file_that_was_emptied_is_read_from_its_start(ranks: Ranks) -> None:
    ranks.print(QUIET * 100)
    ranks.looks(1)
    ranks.files[0].write_text(OOM)
    assert len(ranks.looks()) == 1
