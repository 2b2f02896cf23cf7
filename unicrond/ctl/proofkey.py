"""`unicronctl proof-key FILE`: what sites without MUNGE need, so that unicrond knows whose agents
call."""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path
from typing import Annotated

import typer

from unicrond.errors import BadInput
from unicrond.link.jobproof import LEAST_BYTES, public_key, read_secret


def proof_key(
    file: Annotated[Path, typer.Argument(help="unicrond's secret; made where it is missing.")],
) -> None:
    """Make unicrond's secret, and print the line for agent.conf that agents know it by."""
    made = _make(file)
    print(f"# {file}: {'made' if made else 'there already'}; name it in unicron.toml as proof_key,")
    print("# owned by unicrond's user. For agent.conf on all nodes, in [agent]:")
    print(f"unicrond_key = {public_key(read_secret(file))}")


def _make(file: Path) -> bool:
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror}; name a file in a folder that is there") from None
    with os.fdopen(handle, "wb") as out:
        out.write(base64.b64encode(secrets.token_bytes(LEAST_BYTES)) + b"\n")
    return True
