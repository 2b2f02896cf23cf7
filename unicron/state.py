"""State of a training as bytes: tensors side by side, all else in a description. Uses torch.

What has a `state_dict` is asked for it: modules, optimizers, schedulers, scalers, data loaders.
Reading runs no code that the file names: of classes it knows only the containers in PLAIN.
"""

from __future__ import annotations

import base64
import binascii
import copy
import io
import json
import pickle
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from unicron.errors import CannotKeep, CannotLoad

ALIGNED = 64
SUMMED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PLAIN = {("collections", "OrderedDict"), ("collections", "defaultdict"), ("torch", "Size")}


def collect(state: Mapping[str, Any]) -> tuple[bytes, list[Tensor]]:
    """What is there now, the tensors not yet copied; raises CannotKeep."""
    found = {name: _state_of(part) for name, part in state.items()}
    tensors: list[Tensor] = []
    out = io.BytesIO()
    try:
        _Writer(out, tensors).dump(found)
        _Reader(io.BytesIO(out.getvalue()), tensors).load()
    except (pickle.PicklingError, pickle.UnpicklingError, TypeError, AttributeError) as error:
        raise CannotKeep(str(error)) from error
    return out.getvalue(), tensors


def _state_of(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


class _Writer(pickle.Pickler):
    def __init__(self, out: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(out, protocol=5)
        self._tensors = tensors

    def persistent_id(self, thing: Any) -> int | None:
        if not isinstance(thing, Tensor):
            return None
        if type(thing) not in (Tensor, torch.nn.Parameter) or thing.layout != torch.strided:
            raise pickle.PicklingError(
                f"a {type(thing).__name__} is a part of a whole that is divided over ranks, or not "
                "dense: give its module itself, or keep it with torch.distributed.checkpoint"
            )
        self._tensors.append(thing.detach())
        return len(self._tensors) - 1


class _Reader(pickle.Unpickler):
    def __init__(self, source: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(source)
        self._tensors = tensors

    def persistent_load(self, number: Any) -> Tensor:
        return self._tensors[number]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in PLAIN:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(
            f"{module}.{name} is not kept: give plain numbers, texts, lists, dicts and tensors, or "
            "something with a state_dict of these"
        )


def describe(skeleton: bytes, tensors: Sequence[Tensor]) -> tuple[bytes, int]:
    """The description, and how many bytes the data have."""
    table, place = [], 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        table.append([str(tensor.dtype).removeprefix("torch."), list(tensor.shape), place])
        place += -(-size // ALIGNED) * ALIGNED
    body = {"tensors": table, "rest": base64.b64encode(skeleton).decode()}
    return json.dumps(body).encode(), place


def views(description: bytes, data: memoryview) -> list[Tensor]:
    """Tensors whose memory is `data`; raises CannotLoad."""
    try:
        return [_view(data, *row) for row in json.loads(description)["tensors"]]
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CannotLoad(f"the description is not as it was written: {error}") from error


def _view(data: memoryview, dtype: str, shape: list[int], place: int) -> Tensor:
    kind = getattr(torch, dtype)
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(data, dtype=kind, count=count, offset=place).view(shape)


def has_nan(tensors: Sequence[Tensor]) -> bool:
    """A sum is NaN when an element is, and costs a tenth of asking each. (So it is where there are
    infinities of both signs: just as well.)"""
    return any(bool(one.sum().isnan()) for one in tensors if one.dtype in SUMMED)


def rest(text: str, tensors: Sequence[Tensor]) -> Any:
    """What `collect` has found, with these tensors in it; raises CannotLoad."""
    try:
        return _Reader(io.BytesIO(base64.b64decode(text, validate=True)), tensors).load()
    except (ValueError, binascii.Error, pickle.UnpicklingError, IndexError, EOFError) as error:
        raise CannotLoad(f"the copy cannot be read: {error}") from error


def load(state: MutableMapping[str, Any], description: bytes, data: memoryview) -> None:
    """Into what has `load_state_dict`, in place; other entries are replaced. Raises CannotLoad."""
    found = rest(json.loads(description)["rest"], views(description, data))
    if set(found) != set(state):
        raise CannotLoad(f"the copy has {sorted(found)}, asked for is {sorted(state)}")
    for name, value in found.items():
        if isinstance(state[name], torch.nn.Module):  # copies; others keep what they are given
            state[name].load_state_dict(value)
        elif hasattr(state[name], "load_state_dict"):
            state[name].load_state_dict(copy.deepcopy(value))
        else:
            state[name] = copy.deepcopy(value)
