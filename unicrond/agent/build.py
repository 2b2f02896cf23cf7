"""Packs the agent into one file: python -m unicrond.agent.build OUT.pyz. Same input, same bytes.

What is compiled for the Python that builds lies beside the sources: where it is a job's Python too,
each start saves some tenths of a second. Any other Python reads the sources.
"""

from __future__ import annotations

import importlib.util
import marshal
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
                name, source = str(path.relative_to(root)), path.read_bytes()
                _add(archive, name, source)
                _add(archive, f"{name}c", _compiled(name, source))
    partial.chmod(0o755)
    partial.replace(target)


def _sources(root: Path) -> Iterator[Path]:
    for name in PACKED:
        path = root / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path]


def _compiled(name: str, source: bytes) -> bytes:
    """As importlib wants it: magic, "names its source by hash, unchecked", the hash, the code."""
    code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
    head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")
    return head + importlib.util.source_hash(source) + code


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
