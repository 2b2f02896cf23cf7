"""Dataclasses to JSON and back, by their type hints. Pure, standard library only.

Strict about types, so that a damaged row is found where it is read. Lenient about fields, so that
a program can be upgraded: a field that is missing takes its default, one that is unknown is left
out. What stands in a field of type `object` is the JSON itself.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Decoder = Callable[[Any, str], Any]


class CodecError(ValueError):
    """The message names the place, as in "Run.agents.n1.phase: 'asleep' is not a Phase"."""


def dumps(value: object) -> str:
    """The JSON of `encode(value)`. Most of it is written by C; what is odd takes the slow way."""
    try:
        return _write(value)
    except (TypeError, ValueError):
        return _write(encode(value))


def _write(value: object) -> str:
    return json.dumps(
        value, default=_plainly, ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )


def _plainly(value: Any) -> object:
    """What JSON's own writer does not know: dataclasses above all."""
    names = _names_of(value.__class__)
    return encode(value) if names is None else {name: getattr(value, name) for name in names}


@cache
def _names_of(cls: Any) -> tuple[str, ...] | None:
    """Of the fields of a dataclass; None: it is none."""
    is_noun = dataclasses.is_dataclass(cls)
    return tuple(f.name for f in dataclasses.fields(cls)) if is_noun else None


def loads(cls: type[T], text: str) -> T:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise CodecError(f"{cls.__name__}: not JSON: {error}") from error
    return decode(cls, data)


def encode(value: object) -> Any:
    """A number that JSON cannot hold, such as infinity, becomes text."""
    if isinstance(value, enum.Enum):
        return value.value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    raise CodecError(f"a {type(value).__name__} cannot be stored: {value!r}")


def decode(cls: type[T], data: object) -> T:
    hint: Any = cls
    result: T = _decoder(hint)(data, cls.__name__)
    return result


@cache
def _decoder(hint: Any) -> Decoder:
    """The decoder of a type hint, made once."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is object or hint is Any:
        return lambda data, _: data
    if origin in (Union, types.UnionType):
        return _optional(args)
    if origin is tuple:
        return _tuple(args)
    if origin is list:
        return _list(_decoder(args[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[0], _decoder(args[1]))
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint)
    if issubclass(hint, enum.Enum):
        return _enum(hint)
    return _plain(hint)


def _plain(hint: Any) -> Decoder:
    accepted = (int, float) if hint is float else (hint,)

    def read(data: Any, where: str) -> Any:
        if hint is float and data in ("inf", "-inf", "nan"):
            return float(data)
        if not isinstance(data, accepted) or (isinstance(data, bool) and hint is not bool):
            raise CodecError(f"{where}: {data!r} is not of type {hint.__name__}")
        return float(data) if hint is float else data

    return read


def _enum(hint: type[enum.Enum]) -> Decoder:
    members = {member.value: member for member in hint}

    def read(data: Any, where: str) -> Any:
        if not isinstance(data, str | int) or data not in members:
            raise CodecError(f"{where}: {data!r} is not a {hint.__name__}")
        return members[data]

    return read


def _optional(args: tuple[Any, ...]) -> Decoder:
    inner = [arg for arg in args if arg is not type(None)]
    if len(inner) != 1 or len(args) != 2:
        raise TypeError(f"only X | None can be stored, not a union of {args}")
    read_inner = _decoder(inner[0])
    return lambda data, where: None if data is None else read_inner(data, where)


def _tuple(args: tuple[Any, ...]) -> Decoder:
    if len(args) == 2 and args[1] is Ellipsis:
        read_items = _list(_decoder(args[0]))
        return lambda data, where: tuple(read_items(data, where))
    decoders = [_decoder(arg) for arg in args]

    def read(data: Any, where: str) -> Any:
        if not isinstance(data, list) or len(data) != len(decoders):
            raise CodecError(f"{where}: {data!r} is not a list of {len(decoders)}")
        pairs = zip(decoders, data, strict=True)
        return tuple(read(item, f"{where}[{i}]") for i, (read, item) in enumerate(pairs))

    return read


def _list(read_item: Decoder) -> Decoder:
    def read(data: Any, where: str) -> Any:
        if not isinstance(data, list):
            raise CodecError(f"{where}: {data!r} is not a list")
        return [read_item(item, f"{where}[{i}]") for i, item in enumerate(data)]

    return read


def _mapping(key_type: Any, read_value: Decoder) -> Decoder:
    if key_type not in (str, int):
        raise TypeError(f"keys of type {key_type} cannot be stored")

    def read(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise CodecError(f"{where}: {data!r} is not a mapping")
        try:
            return {key_type(k): read_value(v, f"{where}.{k}") for k, v in data.items()}
        except ValueError as error:
            raise (
                error if isinstance(error, CodecError) else CodecError(f"{where}: {error}")
            ) from None

    return read


def _dataclass(cls: Any) -> Decoder:
    hints = get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init]
    decoders = {f.name: _LateDecoder(hints[f.name]) for f in fields}
    required = [f.name for f in fields if _has_no_default(f)]

    def read(data: Any, where: str) -> Any:
        if not isinstance(data, dict):
            raise CodecError(f"{where}: {data!r} is not a {cls.__name__}")
        if missing := [name for name in required if name not in data]:
            raise CodecError(f"{where}: {', '.join(missing)} missing")
        return cls(**{n: d(data[n], f"{where}.{n}") for n, d in decoders.items() if n in data})

    return read


class _LateDecoder:
    """Looks its decoder up when first used, so that a type may hold itself."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def __call__(self, data: Any, where: str) -> Any:
        return _decoder(self._hint)(data, where)


def _has_no_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
