"""Manual pages: the prose of *.in here, filled with what the programs say of themselves.

PYTHONPATH=. python docs/man/generate.py FOLDER

@commands@   unicronctl's commands and options, from its own parser
@options@    unicrond's, from its own
@usage@      unicron-run's text of usage
@keys@       the configuration's keys and defaults, with the words of docs/admin.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
import typer.main

from unicrond import __version__, config, daemon
from unicrond.ctl.main import app

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted(HERE.glob("*.in")):
        (target / source.stem).write_text(page(source.read_text()))


def page(text: str) -> str:
    fillings = {
        "@version@": lambda: __version__,
        "@commands@": lambda: "\n".join(commands()),
        "@options@": lambda: "\n".join(unicrond_options()),
        "@usage@": lambda: verbatim(usage()),
        "@keys@": lambda: "\n".join(keys()),
    }
    for name, filling in fillings.items():
        if name in text:
            text = text.replace(name, filling())
    return text


def escaped(text: str) -> str:
    """As roff wants it: no word of ours is a request, a dash is a dash."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def verbatim(text: str) -> str:
    return f".nf\n{escaped(text.rstrip())}\n.fi"


def commands() -> Iterator[str]:
    """Of the whole tree, a command a paragraph, its options below it."""
    root = typer.main.get_command(app)
    context = root.make_context("unicronctl", [], resilient_parsing=True)
    for name in root.list_commands(context):  # type: ignore[attr-defined]
        command = root.get_command(context, name)  # type: ignore[attr-defined]
        yield from _command(name, command, context)


def _command(name: str, command: object, above: object) -> Iterator[str]:
    context = command.make_context(  # type: ignore[attr-defined]
        name, [], parent=above, resilient_parsing=True
    )
    inner = getattr(command, "commands", {})
    if not inner:
        pieces = command.collect_usage_pieces(context)  # type: ignore[attr-defined]
        yield f'.SS "unicronctl {escaped(name)} {escaped(" ".join(pieces))}"'
        yield escaped(" ".join((command.help or "").split()))  # type: ignore[attr-defined]
        yield from _options(command, context)
    for inner_name, one in inner.items():
        yield from _command(f"{name} {inner_name}", one, above)


def _options(command: object, context: object) -> Iterator[str]:
    for parameter in command.params:  # type: ignore[attr-defined]
        record = parameter.get_help_record(context)
        if record is None or "--help" in record[0]:
            continue
        shown, words = record
        yield f".TP\n.B {escaped(shown)}"
        yield escaped(" ".join(str(words).split())) or "\\&"


def unicrond_options() -> Iterator[str]:
    for action in daemon.options()._actions:
        shown = ", ".join(action.option_strings) + (f" {action.metavar}" if action.metavar else "")
        yield f".TP\n.B {escaped(shown)}\n{escaped((action.help or '').replace('%', ''))}"


def usage() -> str:
    text = (ROOT / "slurm_plugins" / "unicron-run").read_text()
    return text.split("<<'USAGE'\n")[1].split("\nUSAGE")[0]


def keys() -> Iterator[str]:
    words = documented()
    for key, default in config.keys().items():
        name = ".".join(key)
        yield f'.TP\n.BR "{escaped(name)}" " = {escaped(json.dumps(default))}"'
        yield escaped(words[name])


def documented() -> dict[str, str]:
    """What docs/admin.md says of each key, without its marks."""
    rows = (ROOT / "docs" / "admin.md").read_text().partition("\n## Database")[0].splitlines()
    cells = [row.split("|") for row in rows if row.startswith("| `")]
    return {row[1].strip(" `"): _plain(row[3]) for row in cells}


def _plain(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
