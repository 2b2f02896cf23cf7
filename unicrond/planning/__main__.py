"""The worker: `python -m unicrond.planning [--config FILE]`, a question a line, an answer a line.

It ends when its standard input closes, so it never outlives unicrond. It makes way for others:
nothing waits for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from db.codec import dumps, loads
from db.queries import Queries
from planner.allocator import divide
from planner.fairness import Guarantee
from unicrond.config import Settings, load_settings
from unicrond.errors import BadInput, StoreUnavailable
from unicrond.planning.learning import Learning
from unicrond.planning.words import Ask, Reply

NICE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="unicrond.planning")
    parser.add_argument("--config", type=Path, help="unicron.toml")
    arguments = parser.parse_args()
    with suppress(OSError):  # where a sandbox forbids it
        os.nice(NICE)
    try:
        settings = load_settings(arguments.config)
        logging.basicConfig(level=settings.log_level.upper(), format="%(levelname)s %(message)s")
        _serve(settings)
    except BadInput as error:
        print(f"unicrond.planning: {error}", file=sys.stderr)
        return 2
    return 0


def _serve(settings: Settings) -> None:
    divide(np.zeros((1, 2), np.int64), [0], 1)  # compiles what the first plan would wait for
    accounts = {name: Guarantee(**told.model_dump()) for name, told in settings.accounts.items()}
    with closing(Queries(settings.database_url)) as queries:
        learning = Learning(queries, accounts)
        for line in sys.stdin:
            print(dumps(_answer(learning, loads(Ask, line))), flush=True)
            learning.prepare()


def _answer(learning: Learning, ask: Ask) -> Reply:
    try:
        return learning.answer(ask)
    except StoreUnavailable as error:
        return Reply(trouble=str(error))


if __name__ == "__main__":
    sys.exit(main())
