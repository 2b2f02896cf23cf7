"""Starts unicrond, once it is certain that the packages are its own.

Root names such as `db` and `planner` exist on PyPI too. Another one in front of ours would end in a
riddle at best; so this looks before anything of ours is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OURS = ("db", "detectors", "planner", "transition")
HOME = Path(__file__).resolve().parent.parent


def foreign(names: Iterable[str] = OURS, home: Path = HOME) -> dict[str, str]:
    """Name and place of each package that is not beside this one; "" is nowhere."""
    found = {name: _place(name) for name in names}
    return {name: place for name, place in found.items() if place != str(home / name)}


def _place(name: str) -> str:
    spec = find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(folders[0]).resolve()) if folders else ""


def main() -> int:
    if strangers := foreign():
        for name, place in strangers.items():
            where = f"is taken from {place}" if place else "is not a package anywhere"
            print(
                f"unicrond: `{name}` {where}, and should be {HOME / name}: "
                "give unicrond an environment of its own, without PYTHONPATH",
                file=sys.stderr,
            )
        return 2
    from unicrond.daemon import main as run

    return run()


if __name__ == "__main__":
    sys.exit(main())
