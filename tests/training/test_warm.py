"""`checkpoint` and `restore` in one process: what comes back, from where, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unicron import arena, room
from unicron.errors import CannotLoad
from unicron.warm import NOTHING, Source, Warm, choose

pytestmark = pytest.mark.training


def made(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "position": seed}
    return {**state, "half": torch.ones(3, dtype=torch.bfloat16) * seed, "none": torch.empty(0, 2)}


def train(state: dict[str, Any], steps: int) -> None:
    for _ in range(steps):
        state["optimizer"].zero_grad()
        state["model"](torch.randn(4, 8)).square().mean().backward()
        state["optimizer"].step()
        state["scheduler"].step()
    state["position"] += steps


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def contents(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in state.items()}


def kept(warm: Warm, state: dict[str, Any], step: int, disk: Path | None = None) -> None:
    assert warm.checkpoint(state, step, disk)
    warm.settle()


def test_another_process_gets_exactly_what_was_kept(tmp_path: Path) -> None:
    state, other = made(1), made(2)
    train(state, 3)
    kept(Warm(tmp_path), state, 3)
    assert not same(contents(other), contents(state))
    assert Warm(tmp_path).restore(other, None) == Source(3, in_memory=True, rank=0)
    assert same(contents(other), contents(state))
    train(other, 1)
    again = made(3)
    Warm(tmp_path).restore(again, None)
    assert same(contents(again), contents(state)), "training on changes no copy"


def test_what_training_does_after_the_call_does_not_reach_the_copy(tmp_path: Path) -> None:
    state, other = made(1), made(2)
    train(state, 1)
    warm = Warm(tmp_path)
    assert warm.checkpoint(state, 1, None)
    before = {name: part.clone() for name, part in state["model"].state_dict().items()}
    train(state, 1)
    warm.settle()
    warm.restore(other, None)
    assert same(dict(other["model"].state_dict()), before)


def test_the_newest_of_memory_and_disk_wins(tmp_path: Path) -> None:
    memory, disk, state = tmp_path / "memory", tmp_path / "disk", made(1)
    warm = Warm(memory)
    for step in (1, 2, 3):
        kept(warm, state, step, disk if step == 2 else None)
    assert Warm(memory).restore(made(2), disk) == Source(3, in_memory=True, rank=0)
    assert Warm(tmp_path / "lost").restore(made(2), disk) == Source(2, in_memory=False, rank=0)
    for slot in arena.SLOTS:
        raw = bytearray((memory / slot).read_bytes())
        raw[5000] ^= 1
        (memory / slot).write_bytes(raw)
    assert Warm(memory).restore(made(2), disk) == Source(2, in_memory=False, rank=0)
    assert Warm(memory).restore(made(2), None) is None


def test_state_with_nan_is_not_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    warm, state = Warm(tmp_path), made(1)
    kept(warm, state, 1)
    with torch.no_grad():
        state["model"][0].weight[3, 3] = torch.nan
    for step in (2, 3):
        kept(warm, state, step, tmp_path / "disk")
    assert Warm(tmp_path).restore(made(2), None) == Source(1, in_memory=True, rank=0)
    assert not (tmp_path / "disk").exists()
    assert capfd.readouterr().err.count("it has NaN") == 1


def test_without_room_in_memory_it_is_written_to_disk_directly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check = arena.check_room
    full = tmp_path / "memory"

    def none_in_memory(paths: list[Path], size: int) -> None:
        in_it = paths[0].parent == full
        monkeypatch.setattr(room, "available_bytes", lambda: 0 if in_it else None)
        check(paths, size)

    monkeypatch.setattr(arena, "check_room", none_in_memory)
    warm, state, disk = Warm(full), made(1), tmp_path / "disk"
    assert not warm.checkpoint(state, 1, None)
    kept(warm, state, 2, disk)
    assert [path.name for path in disk.iterdir()] == ["step-0000000002.unicron"]
    assert Warm(full).restore(made(2), disk) == Source(2, in_memory=False, rank=0)
    assert "ask Slurm for more memory" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("part", "word"),
    [
        (Path("x"), "pathlib"),
        (lambda: None, "function"),
        (torch.ones(2).to_sparse(), "dense"),
    ],
)
def test_state_that_cannot_be_kept_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], part: object, word: str
) -> None:
    assert not Warm(tmp_path).checkpoint({"odd": part}, 1, None)
    assert word in capfd.readouterr().err
    assert Warm(tmp_path).restore({"odd": part}, None) is None


def test_a_copy_of_other_state_is_no_copy_of_this(tmp_path: Path) -> None:
    kept(Warm(tmp_path), {"model": nn.Linear(2, 2)}, 1)
    with pytest.raises(CannotLoad, match="asked for is"):
        Warm(tmp_path).restore({"generator": nn.Linear(2, 2)}, None)


def test_one_process_of_a_node_copies_and_another_takes_over(tmp_path: Path) -> None:
    first, second, state = Warm(tmp_path), Warm(tmp_path), made(1)
    assert first.checkpoint(state, 1, None) and not second.checkpoint(state, 1, None)
    first.close()
    kept(second, state, 2)
    assert Warm(tmp_path).restore(made(2), None) == Source(2, in_memory=True, rank=0)


def test_outside_a_run_rank_0_writes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = made(1)
    for rank, writes in (("1", False), ("0", True)):
        monkeypatch.setenv("RANK", rank)
        warm = Warm(None)
        assert warm.checkpoint(state, 5, tmp_path) is writes
        warm.settle()
        warm.close()
    warm = Warm(None)
    assert warm.restore(made(2), tmp_path) == Source(5, in_memory=False, rank=0)
    warm.close()


@pytest.mark.parametrize(
    ("offers", "best"),
    [
        ([Source(NOTHING, False, 0), Source(NOTHING, False, 1)], None),
        ([Source(4, True, 0), Source(5, True, 1), Source(5, True, 2)], Source(5, True, 1)),
        ([Source(5, False, 0), Source(5, True, 1)], Source(5, True, 1)),
        ([Source(6, False, 0), Source(5, True, 1)], Source(6, False, 0)),
        ([Source(0, True, 0), Source(NOTHING, False, 1)], Source(0, True, 0)),
    ],
)
def test_the_newest_wins_then_memory_then_the_lowest_rank(
    offers: list[Source], best: Source | None
) -> None:
    assert choose(offers) == best
