"""What a rank has imported, and which variables were set in it: told once, in a file beside its
page, for the standby process that is to import the same (unicron/standby.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SUFFIX = ".imported"
MOST_MODULES = 20_000


def tell(page: str) -> None:
    """Whole or not at all; a full disk leaves the rank without it."""
    path = Path(page + SUFFIX)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps({"modules": modules(), "changed": changed()}))
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def modules() -> dict[str, str]:
    """The file of each module that has one, in the order in which they were begun. Lazy modules are
    not woken by it."""
    found = {}
    for name, module in list(sys.modules.items())[:MOST_MODULES]:
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if spec is not None and spec.has_location and spec.name == name:
            found[name] = str(spec.origin)
    return found


def changed() -> dict[str, str | None]:
    """Variables that this process was not started with as they are now; None: taken away."""
    lines = os.fsdecode(Path("/proc/self/environ").read_bytes()).split("\0")
    first = dict(line.partition("=")[::2] for line in lines if "=" in line)
    now = dict(os.environ)
    return {name: now.get(name) for name in {*first, *now} if first.get(name) != now.get(name)}
