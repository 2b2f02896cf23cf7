"""FLOPs of a train step, as torch counts them: once a generation, in its second step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unicron
from unicron import page


def train_step(model: torch.nn.Linear) -> None:
    with unicron.flops():
        model(torch.ones(4, 8)).sum().backward()


def test_the_second_step_of_each_generation_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.make(tmp_path / "page")
    mine = page.Page(str(tmp_path / "page"))
    monkeypatch.setattr(page, "_mine", mine)
    monkeypatch.setattr(page, "_looked", True)

    def seen() -> page.Progress:
        found = page.read(tmp_path / "page")
        assert found is not None
        return found

    model = torch.nn.Linear(8, 16)
    forward = 2 * 4 * 8 * 16
    for _ in range(2):  # generations
        mine.joined()
        assert seen().flops == 0
        train_step(model)
        assert seen().flops == 0
        train_step(model)
        assert seen().flops == 2 * forward, "the weight's gradient too; the input has none"
        assert seen().phase == ""
        model = torch.nn.Linear(8, 16)


def test_outside_a_run_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_mine", None)
    monkeypatch.setattr(page, "_looked", True)
    for _ in range(3):
        train_step(torch.nn.Linear(8, 16))
