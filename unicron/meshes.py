"""What torch remembers of a world that is over.

A device mesh equals an older one of the same shape, and the caches of DTensor give out what they
made with that: with its groups, and with the place that this rank had in it. State would be read
and written in another rank's place, without an error.
"""

from __future__ import annotations

import sys
from typing import Any


def forget() -> None:
    """After a group is left, before the next one is formed."""
    tensor: Any = sys.modules.get("torch.distributed.tensor")
    if tensor is None:
        return
    propagator = tensor.DTensor._op_dispatcher.sharding_propagator
    redistribute: Any = sys.modules.get("torch.distributed.tensor._redistribute")
    for cached in (
        propagator.propagate_op_sharding,
        getattr(redistribute, "_gen_transform_infos", None),
    ):
        getattr(cached, "cache_clear", lambda: None)()
    native = sys.modules["torch"]._C
    getattr(native, "_clear_DTensor_sharding_propagator_cache", lambda: None)()  # from torch 2.10
