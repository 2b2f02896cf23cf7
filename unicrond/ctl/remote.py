"""The API of another host: over TLS, as the user that Slurm's token or MUNGE vouches for.

A token in SLURM_JWT counts before MUNGE, as it does for Slurm's own commands. A MUNGE credential is
good for one request, so each gets its own.
"""

from __future__ import annotations

import os
import ssl

import httpx

from unicrond.config import Settings
from unicrond.errors import BadInput, Refused, Unavailable
from unicrond.link.munge import MungeCredentials

TOKEN = "SLURM_JWT"


def client(settings: Settings, url: str) -> httpx.Client:
    """For one request. Raises BadInput, Unavailable."""
    return httpx.Client(
        base_url=url, verify=_roots(settings.api_ca), headers=_proof(settings.cluster),
        trust_env=False,
    )  # fmt: skip


def _roots(file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file or None)
    except OSError as error:  # ssl's own errors too
        raise BadInput(f"api_ca: {file}: {error}; name a PEM file with certificates") from None


def _proof(cluster: str) -> dict[str, str]:
    if token := os.environ.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    try:
        credential = MungeCredentials().seal(f"unicron-api {cluster}".encode(), for_uid=None)
    except (Refused, Unavailable) as error:
        raise Unavailable(
            f"who you are cannot be proved: {error}; get a token: export $(scontrol token)"
        ) from None
    return {"Authorization": f"MUNGE {credential}"}
