"""The page's files: what they may load, and that nothing else is handed out."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from fastapi import FastAPI

from unicrond.api import errors, web

FILES = sorted(path.name for path in web.FOLDER.iterdir())


def ask(path: str, **headers: str) -> httpx.Response:
    app = FastAPI()
    errors.install(app)
    app.include_router(web.routes())

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://unicrond") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(asked())


def test_the_page_may_load_and_ask_nothing_from_elsewhere() -> None:
    start = ask("/")
    policy = start.headers["content-security-policy"]
    assert start.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy and "http" not in policy


@pytest.mark.parametrize("name", FILES)
def test_no_file_names_another_host_or_carries_code_where_the_policy_forbids_it(name: str) -> None:
    text = (web.FOLDER / name).read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.|@import|innerHTML\s*=(?!=)", text)
    assert not name.endswith(".html") or not re.search(r"\son\w+=|style=|<style|<script>", text)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".js")])
def test_whatever_a_file_imports_is_there(name: str) -> None:
    imported = re.findall(r'from "\./([^"]+)"', (web.FOLDER / name).read_text())
    assert set(imported) <= set(FILES)


def test_what_was_not_changed_is_not_sent_again() -> None:
    first = ask("/page/main.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = ask("/page/main.js", **{"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "..%2fapp.py", "%2e%2e%2fapp.py", "app.py"])
def test_no_other_file_is_handed_out(name: str) -> None:
    assert ask(f"/page/{name}").status_code == 404
