"""StrEnum for Python 3.10, where agents may run; from 3.11 on it is the standard library's."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        __str__ = str.__str__


__all__ = ["StrEnum"]
