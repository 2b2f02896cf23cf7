"""`scripts/demo`: real training on a real Slurm cluster breaks and heals, on this machine.

Exit code 0: all of it held. 1: it did not. 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from demo.play import PARTS, Play
from demo.screen import WIDTH, Screen
from demo.verdict import Facts, checks, rows
from demo.watch import NotHeld
from lab import Lab, LabError

Handler = Callable[[int, FrameType | None], None] | signal.Handlers
LAST_WORDS = 15  # lines of unicrond's log, shown when something did not hold
TO_TRY = """The lab is still up; unicrond in it heals whatever you break. Try
  scripts/unicronctl lab exec --name {name} -- unicronctl status
  scripts/unicronctl lab exec --name {name} -- unicronctl why n1
  scripts/unicronctl lab exec --name {name} -- scontrol update nodename=n1 state=resume
  scripts/unicronctl lab exec --name {name} --user alice           a shell as the one who trains
  scripts/unicronctl lab fault power-off --name {name} --node n2
  scripts/unicronctl lab down --name {name}"""


def main() -> int:
    options = _options()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    _on_interrupt(_interrupted)
    try:
        lab = Lab(options.name)
        if lab.is_up():
            raise LabError(f"lab {lab.name} is up: take it down first, or choose another --name")
        return _perform(lab, console, options)
    except LabError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    except Interrupted:
        print("demo: interrupted; the lab is gone", file=sys.stderr)
        return 130


def _options() -> argparse.Namespace:
    words = (__doc__ or "").partition(": ")[2].partition("\n")[0]
    parser = argparse.ArgumentParser(prog="scripts/demo", description=words)
    parser.add_argument("--keep", action="store_true", help="leave the lab up to play with")
    parser.add_argument("--name", default="demo", help="of the lab (default: demo)")
    parser.add_argument("--picture", type=Path, metavar="FILE.svg", help="draw what was shown")
    return parser.parse_args()


class Interrupted(BaseException):
    """Not KeyboardInterrupt: after one inside of exec() Python ends itself by a signal."""


def _on_interrupt(handler: Handler) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise Interrupted


def _perform(lab: Lab, console: Console, options: argparse.Namespace) -> int:
    screen = Screen(console, [part.name for part in PARTS])
    keep = False
    try:
        held = _held(lab, screen)
        keep = options.keep
    finally:
        screen.close()
        if not keep:
            _on_interrupt(signal.SIG_IGN)  # impatience must not leave half a lab
            lab.down()
    if keep:
        console.print(Text(TO_TRY.format(name=lab.name)))
    if options.picture:
        screen.picture(options.picture)
    return 0 if held else 1


def _held(lab: Lab, screen: Screen) -> bool:
    screen.open()
    play = Play(lab, screen)
    try:
        facts = play.perform()
    except NotHeld as error:
        screen.close()
        screen.say("FAILED", str(error))
        for line in _log(lab):
            screen.show(Text(line, style="dim"))
        return False
    screen.close()
    return _judge(play, facts, screen)


def _judge(play: Play, facts: Facts, screen: Screen) -> bool:
    for run in facts.runs.values():
        screen.show(Text(f"\n$ unicronctl why {run.run_id}", style="bold"))
        screen.show(Text.from_ansi(play.why(run.run_id, screen.variables)))
    screen.show(Text(""), drawn=True)
    screen.table(rows(facts))
    found = checks(facts)
    screen.checks(found)
    return all(check.held for check in found)


def _log(lab: Lab) -> list[str]:
    log = lab.paths.log / "unicron/unicrond.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return lines[-LAST_WORDS:]


if __name__ == "__main__":
    sys.exit(main())
