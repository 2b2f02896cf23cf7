"""`unicron.heartbeat`, `checkpoint` and `restore` for frameworks that own the loop.

    Trainer(..., callbacks=[ForTransformers()])            Hugging Face; ForTransformers(folder)
    Trainer(..., callbacks=[ForLightning()])               Lightning, also its older name
    kept = ForAccelerate(accelerator); kept.restore()      Accelerate: kept.step_end(step, loss)

None of these packages is imported: their hooks are called by name. Every `copy_every` train steps a
copy is kept in memory, every `disk_every` one in `folder`; training begins from the newest. State
that is divided over ranks (FSDP, ZeRO) is refused by `checkpoint`, in a sentence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import unicron

COPY_EVERY = 10  # train steps


class _Kept:
    def __init__(
        self, folder: str | Path | None = None, copy_every: int = COPY_EVERY, disk_every: int = 0
    ) -> None:
        if copy_every < 1 or disk_every < 0:
            raise ValueError("copy_every must be at least 1, disk_every at least 0 (0: never)")
        if disk_every and folder is None:
            raise ValueError("disk_every needs a folder to write to")
        self._folder, self._copy_every, self._disk_every = folder, copy_every, disk_every
        self._phase = contextlib.ExitStack()
        self._step = 0

    def _stepped(
        self, step: int, loss: float | None, state: Callable[[], MutableMapping[str, Any]]
    ) -> None:
        """Also called where no new train step is complete."""
        if step <= self._step:
            return
        self._step = step
        to_disk = self._disk_every > 0 and step % self._disk_every == 0
        if to_disk or step % self._copy_every == 0:
            unicron.checkpoint(state(), step, self._folder if to_disk else None)
        unicron.heartbeat(step, loss)

    def _restored(self, state: MutableMapping[str, Any]) -> int:
        self._step = unicron.restore(state, self._folder) or 0
        return self._step

    def _enter(self, phase: str) -> None:
        self._phase.close()
        self._phase.enter_context(unicron.phase(phase))

    def _leave(self) -> None:
        self._phase.close()


class _Hooks(_Kept):
    """Has every hook that there may be; most do nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("on_") or name in ("setup", "teardown", "load_state_dict"):
            return _nothing
        raise AttributeError(name)


def _nothing(*_: Any, **__: Any) -> None:
    return


class ForTransformers(_Hooks):
    """Model, optimizer, scheduler and the number of the train step are kept; data are not: they
    begin anew with the epoch. Where that matters, resume from the Trainer's own checkpoint."""

    _loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        if step := self._restored(_of_transformers(has)):
            state.global_step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        self._leave()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **has: Any) -> None:
        """It comes after the train step's end: the loss is told with the next."""
        self._loss = (logs or {}).get("loss")

    def on_step_end(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        self._stepped(state.global_step, self._loss, lambda: _of_transformers(has))
        self._loss = None
        if control.should_evaluate or control.should_save:
            self._enter("evaluation" if control.should_evaluate else "checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **has: Any) -> None:
        self._leave()


def _of_transformers(has: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    parts = {name: has.get(name) for name in ("model", "optimizer", "lr_scheduler")}
    return {name: part for name, part in parts.items() if part is not None}


class ForLightning(_Hooks):
    """Module, optimizers, schedulers and the progress of the loops are kept."""

    state_key = "unicron"

    def state_dict(self) -> dict[str, Any]:
        return {}

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        state = _of_lightning(trainer, module)
        if self._restored(state):
            trainer.fit_loop.load_state_dict(state["loops"])

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        state = trainer.global_step, None if loss is None else float(loss)
        self._stepped(*state, lambda: _of_lightning(trainer, module))

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        self._enter("evaluation")

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        self._leave()


def _of_lightning(trainer: Any, module: Any) -> dict[str, Any]:
    schedulers = [one.scheduler for one in trainer.lr_scheduler_configs]
    return {
        "module": module,
        "loops": trainer.fit_loop.state_dict(),
        **_numbered("optimizer", trainer.optimizers),
        **_numbered("scheduler", schedulers),
    }


class ForAccelerate(_Kept):
    """What went through `accelerator.prepare`, or was registered for checkpointing, is kept. Make
    it after that; the position in the data is the script's own, as `position`."""

    def __init__(self, accelerator: Any, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._accelerator = accelerator
        self.position: Any = None

    def restore(self) -> int:
        """The train step that training begins after, 0 for none."""
        state = self._state()
        step = self._restored(state)
        self.position = state["position"]
        return step

    def step_end(self, step: int, loss: float | None = None) -> None:
        self._stepped(step, loss, self._state)

    def _state(self) -> dict[str, Any]:
        of = self._accelerator
        models = [of.unwrap_model(one) for one in of._models]
        return {
            "position": self.position,
            **_numbered("model", models),
            **_numbered("optimizer", of._optimizers),
            **_numbered("scheduler", of._schedulers),
            **_numbered("custom", of._custom_objects),
        }


def _numbered(name: str, parts: list[Any]) -> dict[str, Any]:
    return {f"{name}-{number}": part for number, part in enumerate(parts)}
