"""Functions compiled to machine code at their first call, and kept on disk where that is possible.

The compiled code is kept beside this package when that folder is writable, else in the user's own
cache folder, or where NUMBA_CACHE_DIR says. Where none of them can be written each process
compiles for itself, some seconds at its first plan. The folder holds code: nobody else may write
to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    try:
        return cast(F, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # numba found no folder for its cache
        return cast(F, numba.njit(nogil=True)(function))
