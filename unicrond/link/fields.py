"""Reads single fields of a message, each with its bounds; what is off is a ProtocolError. Pure."""

from __future__ import annotations

import re

from unicrond.errors import ProtocolError
from unicrond.link.frames import Body

LARGEST = 2**53  # beyond this, JSON readers disagree
TEXT_LIMIT = 64 << 10
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def integer(body: Body, field: str, low: int = 0, high: int = LARGEST) -> int:
    value = body.get(field)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"`{field}` is not an integer from {low} to {high}")
    return value


def number(body: Body, field: str, low: float = 0.0, high: float = LARGEST) -> float:
    value = body.get(field)
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise ProtocolError(f"`{field}` is not a number from {low} to {high}")
    return float(value)  # type: ignore[arg-type]


def text(body: Body, field: str, limit: int = TEXT_LIMIT) -> str:
    """ "" when the field is missing."""
    value = body.get(field, "")
    if type(value) is not str or len(value) > limit:
        raise ProtocolError(f"`{field}` is not a text of at most {limit} characters")
    return value


def name(body: Body, field: str) -> str:
    """A node's name or an id."""
    value = body.get(field)
    if type(value) is not str or not _NAME.fullmatch(value):
        raise ProtocolError(f"`{field}` is not a name")
    return value


def boolean(body: Body, field: str) -> bool:
    """False when the field is missing."""
    value = body.get(field, False)
    if type(value) is not bool:
        raise ProtocolError(f"`{field}` is not true or false")
    return value


def mapping(body: Body, field: str) -> Body:
    """{} when the field is missing."""
    value = body.get(field)
    if value is None:
        return {}
    if type(value) is not dict:
        raise ProtocolError(f"`{field}` is not an object")
    return value


def names(body: Body, field: str, limit: int) -> tuple[str, ...]:
    value = body.get(field)
    if type(value) is not list or not 1 <= len(value) <= limit:
        raise ProtocolError(f"`{field}` is not a list of 1 to {limit} names")
    for item in value:
        if type(item) is not str or not _NAME.fullmatch(item):
            raise ProtocolError(f"`{field}` holds something that is not a name")
    return tuple(value)


def ages(body: Body, field: str, limit: int) -> dict[str, float]:
    """A map from node to how many seconds ago; {} when the field is missing."""
    value = mapping(body, field)
    if len(value) > limit:
        raise ProtocolError(f"`{field}` names more than {limit} nodes")
    for age in value.values():
        if type(age) not in (int, float) or age < 0:
            raise ProtocolError(f"`{field}` holds an age that is not a number from 0")
    return value
