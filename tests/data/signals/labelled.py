"""Reads the labelled messages beside this file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Message:
    kind: str
    severity: str
    blame: str
    source_kind: str
    text: str


def messages(name: str = "messages.txt") -> Iterator[Message]:
    head: list[str] = []
    for block in (FOLDER / name).read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith("# ")]
        if lines and lines[0].startswith("## "):
            head = [word.strip() for word in lines.pop(0)[3:].split("|")]
        text = "\n".join(lines).strip("\n")
        if text:
            kind, severity, blame, source_kind = head
            yield Message(kind, severity, blame, source_kind, text)
