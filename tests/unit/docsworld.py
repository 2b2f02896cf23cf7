"""Commands that the documents show, as a reader would copy them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
ACTING = {
    "mode",
    "proof-key",
    "incident",
    "run",
    "db",
    "plugins",
    "lab",
    "top",
    "simulate",
    "pause",
    "node",
    "audit",
    "unpause",
    "doctor",
}


def shown(program: str) -> Iterator[tuple[str, list[str]]]:
    """Where it stands, and the words behind `program`, of indented code; remarks are left out."""
    for document in DOCUMENTS:
        for number, line in enumerate(_joined(document.read_text()), start=1):
            found = re.match(rf" {{4,}}(?:\$ )?(?:\S+=\S+ )*(?:\S*/)?{program}\b(.*)", line)
            if found and not line.strip().endswith(":"):
                yield f"{document.name}:{number}", shlex.split(found[1], comments=True)


def _joined(text: str) -> list[str]:
    """Lines that end with a backslash go on in the next."""
    return re.sub(r"\\\n\s*", " ", text).splitlines()


def wrapped() -> Iterator[tuple[str, list[str]]]:
    """Words behind unicron-run, wherever it stands in a line of code."""
    for document in DOCUMENTS:
        for number, line in enumerate(_joined(document.read_text()), start=1):
            if line.startswith("    ") and "unicron-run" in line and " -- " in line:
                behind = re.split(r"unicron-run\)?", line, maxsplit=1)[1]
                yield f"{document.name}:{number}", shlex.split(behind, comments=True)


def reading() -> list[list[str]]:
    """Commands that only ask the API, each once."""
    found = [
        words
        for _, words in shown("unicronctl")
        if words and words[0] not in ACTING and not {"--what-if", "--sacct", "--html"} & {*words}
    ]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]
