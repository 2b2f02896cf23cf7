"""Are the packages that Python finds ours? Standard library: asked before anything of ours is
imported, since root names such as `db` and `planner` exist on PyPI too."""

from __future__ import annotations

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
