"""What can go wrong, as one tree; a test keeps this picture true.

UnicronError
├── BadInput          the caller's words are off: exit code 2, names the field and the remedy
├── Unavailable       an outside part did not answer: try again later
│   ├── SlurmUnavailable
│   └── StoreUnavailable
├── Refused           an outside part answered no
├── LeaseLost         another unicrond leads: this one ends
└── ProtocolError     a peer speaks out of turn: its connection is closed, nothing else
"""

from __future__ import annotations


class UnicronError(Exception):
    """Root of every error that we raise on purpose."""


class BadInput(UnicronError):  # noqa: N818 - reads as what it is
    """The caller's words are off; the message names the field and the remedy."""


class Unavailable(UnicronError):  # noqa: N818
    """An outside part did not answer."""


class SlurmUnavailable(Unavailable):
    """slurmctld, or the command that asks it, did not answer in time."""


class StoreUnavailable(Unavailable):
    """The database did not take or give data."""


class Refused(UnicronError):  # noqa: N818
    """An outside part answered no, with a reason."""


class LeaseLost(UnicronError):  # noqa: N818
    """Another unicrond leads, so this one must do nothing more."""


class ProtocolError(UnicronError):
    """A peer speaks out of turn; its connection is closed."""
