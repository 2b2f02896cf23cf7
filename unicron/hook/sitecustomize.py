"""Found first on a rank's PYTHONPATH: installs the watch, then runs the user's sitecustomize.

Python runs it at start, except under -E, -I and -S. It must never break the program it starts in.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

_here = str(Path(__file__).parent)
_home = str(Path(__file__).parent.parent.parent)


def _others(path: str) -> bool:
    return path not in (_here, _home)


def _watch() -> None:
    sys.path.insert(0, _home)
    try:
        from unicron import watch

        watch.install()
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on without it
        print(f"unicron: training is not watched from inside: {error!r}", file=sys.stderr)
    finally:
        sys.path.remove(_home)


def _chain() -> None:
    """The next sitecustomize on the path, as if ours were not there."""
    rest = [path for path in sys.path if _others(path)]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_watch()
sys.path[:] = [path for path in sys.path if path != _here]
_chain()
