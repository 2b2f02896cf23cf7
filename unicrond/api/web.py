"""The web page: the files of page/, served beside the API that they ask. Reads that folder once.

The policy lets the page load and ask nothing but what stands here, and nobody frame it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

from unicrond.api.errors import NotFound

FOLDER = Path(__file__).parent / "page"
START = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked again each time, answered by the tag
}


@dataclass(frozen=True, slots=True)
class Served:
    content: bytes
    media_type: str
    tag: str


def routes() -> APIRouter:
    router = APIRouter(include_in_schema=False)
    files = {path.name: _read(path) for path in FOLDER.iterdir() if path.suffix in TYPES}

    @router.get("/")
    def start(request: Request) -> Response:
        return _answer(files[START], request)

    @router.get("/page/{name}")
    def file(name: str, request: Request) -> Response:
        if name not in files:
            raise NotFound(f"the page has no file {name}")
        return _answer(files[name], request)

    return router


def _read(path: Path) -> Served:
    content = path.read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return Served(content, TYPES[path.suffix], tag)


def _answer(file: Served, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
