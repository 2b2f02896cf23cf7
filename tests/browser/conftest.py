"""Headless Chromium, and the API's own process over a filled store."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, sync_playwright

sys.path.insert(0, str(Path(__file__).parent))

from filled import LARGE, SMALL, Size, fill

ROOT = Path(__file__).parents[2]
READY_SECONDS = 30.0


@dataclass
class Served:
    url: str
    database: str
    process: subprocess.Popen[bytes]


@dataclass
class Sight:
    """A page, what it asked for, and what it complained of."""

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("request", self._on_request)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _on_request(self, request: Request) -> None:
        self.asked.append(request.url)

    def open(self, view: str = "cluster") -> Page:
        self.page.goto(f"{self.url}/#{view}")
        return self.page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "no chromium here: scripts/setup --browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def served(folder: Path, size: Size) -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    database = f"sqlite:///{folder}/unicron.db"
    config = folder / "unicron.toml"
    config.write_text(
        f'cluster = "alpha"\ndatabase_url = "{database}"\n'
        f'api_listen = "{address}"\napi_socket = "{folder}/api.sock"\n'
        f'control_socket = "{folder}/control.sock"\n'
    )
    fill(database, size, time.time())
    command = [sys.executable, "-m", "unicrond.api", "--config", str(config)]
    with subprocess.Popen(command, cwd=ROOT) as process:
        deadline = time.monotonic() + READY_SECONDS
        while not (folder / "api.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            yield Served(f"http://{address}", database, process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("small"), SMALL) as it:
        yield it


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path, SMALL) as it:
        yield it


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("large"), LARGE) as it:
        yield it


See = Callable[[Served], Sight]


@pytest.fixture
def see(browser: Browser) -> Iterator[See]:
    """Opens a page of its own; it must not have complained of anything at the end."""
    opened: list[Page] = []

    def look(api: Served) -> Sight:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        opened.append(page)
        return Sight(page, api.url)

    yield look
    for page in opened:
        page.close()
