"""Callbacks under the frameworks themselves, where these are installed: `pip install -e
'.[frameworks]'`. Copies go to disk here, as there is no agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import unicron
from unicron import page, warm
from unicron.callbacks import ForAccelerate, ForLightning, ForTransformers

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]
BATCH, EPOCH = 2, 8  # samples; batches


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """As in a run: with a page to tell heartbeats to, and a place for copies."""
    page.make(tmp_path / "page")
    mine = page.Page(tmp_path / "page")
    mine.joined()
    monkeypatch.setattr(page, "of_this_process", lambda: mine)
    monkeypatch.setattr(warm, "_warm", None)
    monkeypatch.setenv("UNICRON_ARENA", str(tmp_path / "arena"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield tmp_path / "page"
    if warm._warm:
        warm._warm.close()


class Numbers(Dataset[Tensor]):
    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.samples = torch.randn(BATCH * EPOCH, 4, generator=drawn)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, place: int) -> Any:
        return {"x": self.samples[place]}


class Stateful:
    """A loader that can be put where it was, as Lightning wants it for the middle of an epoch."""

    def __init__(self) -> None:
        self.place = 0

    def __len__(self) -> int:
        return EPOCH

    def __iter__(self) -> Iterator[Any]:
        batches = list(DataLoader(Numbers(), batch_size=BATCH))
        while self.place < EPOCH:
            self.place += 1
            yield batches[self.place - 1]
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": self.linear(x).square().mean()}


def another_process() -> None:
    warm.of_this_process().close()
    warm._warm = None


def progress(beats: Path) -> int:
    found = page.read(beats)
    assert found is not None
    return found.iteration


def test_transformers(tmp_path: Path, beats: Path) -> None:
    hf = pytest.importorskip("transformers")

    def train(steps: int) -> Any:
        options = hf.TrainingArguments(
            str(tmp_path / "out"), max_steps=steps, use_cpu=True, report_to=[], save_strategy="no",
            per_device_train_batch_size=BATCH, disable_tqdm=True, logging_steps=1, eval_steps=3,
            eval_strategy="steps",
        )  # fmt: skip
        callback = ForTransformers(copy_every=1)
        trainer = hf.Trainer(
            Model(), options, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[callback]
        )
        trainer.train()
        return trainer

    train(4)
    assert progress(beats) == 4
    another_process()
    trainer = train(6)
    assert (trainer.state.global_step, progress(beats)) == (6, 6)
    assert trainer.optimizer.state_dict()["state"][0]["step"] == 6


def test_lightning(tmp_path: Path, beats: Path) -> None:
    lightning = pytest.importorskip("pytorch_lightning")
    seen: list[float] = []

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = Model()

        def training_step(self, batch: Any, number: int) -> Tensor:
            seen.append(float(batch["x"].sum()))
            return self.inner(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def train(steps: int) -> Any:
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[ForLightning(copy_every=1)],
        )  # fmt: skip
        module = Module()
        trainer.fit(module, Stateful())
        return trainer, [one.detach().clone() for one in module.parameters()]

    train(5)
    assert progress(beats) == 5
    another_process()
    trainer, parts = train(11)
    assert (trainer.global_step, progress(beats)) == (11, 11)
    in_parts, seen = list(seen), []
    another_process()
    (tmp_path / "arena").rename(tmp_path / "before")
    _, whole = train(11)
    assert seen == in_parts, "each batch once, in its order"
    assert all(torch.equal(one, other) for one, other in zip(parts, whole, strict=True))


def test_accelerate(tmp_path: Path, beats: Path) -> None:
    accelerate = pytest.importorskip("accelerate")

    def train(steps: int) -> tuple[list[Tensor], int]:
        accelerator = accelerate.Accelerator(cpu=True)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model, optimizer = accelerator.prepare(model, optimizer)
        kept = ForAccelerate(accelerator, copy_every=1)
        first = kept.restore()
        for step in range(first + 1, steps + 1):
            samples = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
            loss = model(samples)["loss"]
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            kept.step_end(step, float(loss))
        return [one.detach().clone() for one in model.parameters()], first

    assert train(4)[1] == 0
    another_process()
    parts, first = train(7)
    assert (first, progress(beats)) == (4, 7)
    another_process()
    (tmp_path / "arena").rename(tmp_path / "before")
    assert all(torch.equal(*pair) for pair in zip(parts, train(7)[0], strict=True))


def test_options_that_cannot_be_are_named() -> None:
    with pytest.raises(ValueError, match="copy_every"):
        ForLightning(copy_every=0)
    with pytest.raises(ValueError, match="folder"):
        ForTransformers(disk_every=5)
    assert unicron.inside()
