"""Found first on a rank's PYTHONPATH: installs the watch, then runs the user's sitecustomize.

Python runs it at start, except under -E, -I and -S. It must never break the program it starts in,
nor slow it: every Python child of a rank runs it too, so the watch waits there until torch comes.
"""

import os
import sys

_here = os.path.dirname(__file__)  # noqa: PTH120 - pathlib costs every Python child some ms
_home = os.path.dirname(os.path.dirname(_here))  # noqa: PTH120


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


class _WhenTorchComes:
    """A finder that finds nothing."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch" and self in sys.meta_path:
            sys.meta_path.remove(self)
            _watch()


def _owner() -> int:
    """The process that counts, as the rank's page has it; 0: none that lives, -1: no page."""
    try:
        with open(os.environ["UNICRON_PAGE"], "rb") as file:  # noqa: PTH123
            pid = int.from_bytes(file.read(24)[16:], "little")
    except (KeyError, OSError, ValueError):
        return -1
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return pid if isinstance(error, PermissionError) else 0
    return pid


def _stand_by() -> None:
    """Whatever fails, the script must not run: this process is no rank."""
    try:
        from unicron import standby
    except BaseException as error:  # noqa: BLE001
        print(f"unicron: {error!r}", file=sys.stderr)
        os._exit(1)
    standby.serve()


def _chain() -> None:
    """The next sitecustomize on the path, as if ours were not there."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if _others(path)])
    if spec is not None and spec.loader is not None:
        module = type(sys)(spec.name)  # as module_from_spec, which costs some ms to import
        module.__spec__, module.__loader__ = spec, spec.loader
        module.__file__, module.__package__ = spec.origin, ""
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("UNICRON_WATCH") != "0":
    _counts = _owner()
    if _counts == 0:
        _watch()
    elif _counts > 0:
        sys.meta_path.insert(0, _WhenTorchComes())
if "UNICRON_STANDBY_ROOM" in os.environ:
    _stand_by()  # goes on in the ranks that are forked alone
sys.path[:] = [path for path in sys.path if path != _here]
_chain()
