"""Who is who in Slurm: AdminLevel, coordinators of accounts, what PrivateData keeps private.

Asked once a minute by a thread; what was answered last holds until there is a newer answer.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from unicrond.api.callers import Role
from unicrond.errors import Refused, SlurmUnavailable
from unicrond.slurm.command import SlurmCommand

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
ALL = frozenset({"jobs", "nodes", "usage"})
_LEVELS = {"Operator": Role.OPERATOR, "Administrator": Role.ADMIN}
_PRIVATE = re.compile(r"(?m)^PrivateData\s*=\s*(\S*)")


@dataclass(frozen=True, slots=True)
class Known:
    """`private` None: Slurm has not told yet."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    accounts: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by coordinator
    private: frozenset[str] | None = None


class Directory:
    """`run` gives the output of one of Slurm's commands; raises Refused, SlurmUnavailable."""

    def __init__(self, run: Callable[..., str] | None = None, known: Known | None = None) -> None:
        self._run = run or SlurmCommand().run
        self.known = known or Known()
        self._fault = ""
        self._ending = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._keep, name="directory", daemon=True).start()

    def stop(self) -> None:
        self._ending.set()

    def look(self) -> None:
        for ask in (self._private, self._roles, self._accounts):
            try:
                self.known = ask()
                self._fault = ""
            except (Refused, SlurmUnavailable) as error:
                if str(error) != self._fault:
                    log.warning("who may do what: as known before: %s", error)
                self._fault = str(error)
                return

    def _keep(self) -> None:
        self.look()
        while not self._ending.wait(EVERY_SECONDS):
            self.look()

    def _private(self) -> Known:
        return replace(self.known, private=private_data(self._run("scontrol", "show", "config")))

    def _roles(self) -> Known:
        words = ("--noheader", "--parsable2", "show", "user", "format=User,AdminLevel")
        return replace(self.known, roles=admin_levels(self._run("sacctmgr", *words)))

    def _accounts(self) -> Known:
        words = ("show", "account", "withcoordinator", "format=Account,Coordinators")
        told = self._run("sacctmgr", "--noheader", "--parsable2", *words)
        return replace(self.known, accounts=coordinators(told))


def private_data(config: str) -> frozenset[str] | None:
    found = _PRIVATE.search(config)
    if found is None:
        return None
    return frozenset(found[1].lower().split(",")) - {"", "none", "(null)"}


def admin_levels(told: str) -> dict[str, Role]:
    pairs = (line.split("|", 1) for line in told.splitlines() if "|" in line)
    return {user: _LEVELS[level] for user, level in pairs if level in _LEVELS}


def coordinators(told: str) -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for line in told.splitlines():
        account, _, names = line.partition("|")
        for name in filter(None, names.split(",")):
            found.setdefault(name, set()).add(account)
    return {name: frozenset(accounts) for name, accounts in found.items()}
