"""Packs the agent into one file: python -m unicrond.agent.build OUT.pyz. Same input, same bytes."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import unicrond

PACKED = (
    "unicrond/__init__.py",
    "unicrond/errors.py",
    "unicrond/agent",
    "unicrond/agent/sensors",
    "unicrond/model",
    "unicrond/link",
    "detectors",
    "unicron",
)
MAIN = "from unicrond.agent.__main__ import main\nimport sys\nsys.exit(main(sys.argv[1:]))\n"
_TIME = (1980, 1, 1, 0, 0, 0)


def build(target: Path) -> None:
    root = Path(unicrond.__file__).parent.parent
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", MAIN.encode())
            for path in _sources(root):
                _add(archive, str(path.relative_to(root)), path.read_bytes())
    partial.chmod(0o755)
    partial.replace(target)


def _sources(root: Path) -> Iterator[Path]:
    for name in PACKED:
        path = root / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, data)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m unicrond.agent.build OUT.pyz", file=sys.stderr)
        return 2
    build(Path(arguments[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
