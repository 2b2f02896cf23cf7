"""What may go wrong inside a training process.

UnicronError
├── AgentGone    there is no agent to talk to, or no more
├── Revoked      this generation is over; a newer one may come
├── Stuck        a group could not be left in time: only a new process helps
├── NoRoom       not enough memory for a copy, or the file system cannot be written
├── CannotKeep   state that there is no way to keep; the message names it
└── CannotLoad   a copy that does not fit what it should be loaded into
"""


class UnicronError(Exception):
    """Root of every error that we raise on purpose inside a training process."""


class AgentGone(UnicronError):  # noqa: N818 - reads as what it is
    """There is no agent to talk to, or no more."""


class Revoked(UnicronError):  # noqa: N818
    """This generation is over."""


class Stuck(UnicronError):  # noqa: N818
    """A group could not be left in time."""


class NoRoom(UnicronError):  # noqa: N818
    """Not enough memory for a copy."""


class CannotKeep(UnicronError):  # noqa: N818
    """The message names what."""


class CannotLoad(UnicronError):  # noqa: N818
    """The message says why."""
