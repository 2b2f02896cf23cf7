"""Starts unicrond, once it is certain that the packages are its own.

Another one in front of ours would end in a riddle at best; so this looks first (packages.py).
"""

from __future__ import annotations

import sys

from unicrond.packages import HOME, foreign


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
