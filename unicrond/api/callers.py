"""Who asks, and what they may see.

role       reads                                   commands
viewer     what Slurm's PrivateData leaves public  none
user       the same, and everything of their own   on their own runs, and those of accounts that
                                                   they coordinate
operator   everything                              on every run; pauses anything
admin      everything                              everything
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from fastapi import Depends, Request

from unicrond.model.cluster import Allocation
from unicrond.model.run import Run


class Role(IntEnum):
    VIEWER = 0
    USER = 1
    OPERATOR = 2
    ADMIN = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """`via`: unix, token, munge or loopback; `origin`: the address, or the process's uid."""

    user: str  # "" where it is not known
    uid: int | None
    role: Role
    via: str
    origin: str = ""
    accounts: frozenset[str] = frozenset()  # that they coordinate

    def owns(self, user: str, uid: int | None = None, account: str = "") -> bool:
        """Whether something is theirs: by uid where both are known, else by name."""
        if self.role is Role.VIEWER:
            return False
        if account and account in self.accounts:
            return True
        if self.uid is not None and uid is not None:
            return self.uid == uid
        return bool(self.user) and self.user == user


@dataclass(frozen=True, slots=True)
class Sight:
    """What one caller sees where Slurm keeps `private` things (PrivateData) from strangers."""

    caller: Caller
    private: Collection[str] = ()

    def _all(self, what: str) -> bool:
        return what not in self.private or self.caller.role >= Role.OPERATOR

    @property
    def jobs(self) -> bool:
        return self._all("jobs")

    @property
    def nodes(self) -> bool:
        return self._all("nodes")

    @property
    def usage(self) -> bool:
        return self._all("usage") and self.jobs

    def sees_run(self, run: Run) -> bool:
        return self.jobs or self.caller.owns(run.user, run.uid)

    def sees_job(self, job: Allocation) -> bool:
        return self.jobs or self.caller.owns(job.user, job.uid, job.account)


async def sight_of(request: Request) -> Sight:
    """As the application's gate (gate.py) knows whoever asks."""
    sight: Sight = await request.app.state.gate.sight(request)
    return sight


async def caller_of(request: Request) -> Caller:
    return (await sight_of(request)).caller


Seeing = Annotated[Sight, Depends(sight_of)]
Asking = Annotated[Caller, Depends(caller_of)]
