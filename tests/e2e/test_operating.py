"""What an admin has of a unicrond at work: the page in a browser, a configuration read anew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from playwright.sync_api import Page, expect, sync_playwright
from stage import LOCKSTEP, UNICRON_TOML, Stage, until

from lab import processes

pytestmark = pytest.mark.slurm

CONFIGURATION = "/etc/unicron/unicron.toml"
TLS_TOML = """api_tls_listen = "0.0.0.0:7719"
api_tls_certificate = "/etc/unicron/tls.pem"
api_tls_key = "/etc/unicron/key.pem"
api_urls = ["https://head:7719"]
api_ca = "/etc/unicron/tls.pem"
api_slurm_tokens = true
"""

SOON_MS = 20_000
HEAL_MS = 60_000


@pytest.fixture
def page(raised_stage: Stage, tmp_path: Path) -> Iterator[Page]:
    """A browser on the head: there the API listens for those who read."""
    chromium, head = shutil.which("chromium"), processes.head_init(raised_stage.name)
    assert chromium, "no chromium here: scripts/setup --browser"
    on_the_head = tmp_path / "chromium"
    on_the_head.write_text(f'#!/bin/sh\nexec nsenter --target {head} --net {chromium} "$@"\n')
    on_the_head.chmod(0o755)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(on_the_head), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.goto("http://127.0.0.1:7718/#cluster")
        yield page
        browser.close()


def shown(page: Page, name: str) -> None:
    """For people who want to look at it."""
    if folder := os.environ.get("UNICRON_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}.png")


def test_a_heal_is_seen_while_it_happens_and_told_afterwards(stage: Stage, page: Page) -> None:
    training = stage.training(LOCKSTEP, "--min-nodes=2")
    row = page.locator("#runs tr", has_text=str(training.job))
    expect(row).to_contain_text("running", timeout=SOON_MS)
    expect(page.locator("#legend")).to_contain_text("in a run 6", timeout=SOON_MS)
    stage.lab.fault("cut-link", node="n2")
    expect(page.locator("#incidents")).to_contain_text("n2", timeout=SOON_MS)
    shown(page, "healing")
    training.goes_on(generation=2)
    expect(page.locator("#legend")).to_contain_text("drained 2", timeout=HEAL_MS)
    row.click()
    story = page.locator("#story")
    expect(story.locator(".chart text", has_text="g2: 2")).to_be_visible(timeout=SOON_MS)
    expect(story.locator(".alternatives .chosen").first).to_be_visible()
    shown(page, "healed")
    page.keyboard.press("Escape")
    page.keyboard.press("4")
    expect(page.locator("#decisions article").first).to_contain_text("n2", timeout=SOON_MS)
    shown(page, "decisions")


def test_a_configuration_is_read_anew_without_a_restart(stage: Stage) -> None:
    file, pid = stage.lab.paths.inside(CONFIGURATION), stage.unicrond_pid()
    assert pid is not None

    def alice_pauses() -> bool:
        done = stage.lab.exec(["unicronctl", "mode", "paused"], user="alice", check=False)
        return done.returncode == 0

    try:
        assert not alice_pauses()
        file.write_text(f'admins = ["alice"]\nwrong = 1\n{UNICRON_TOML}')
        os.kill(pid, signal.SIGHUP)
        assert not alice_pauses(), "a wrong configuration changes nothing"
        file.write_text(f'admins = ["alice"]\n{UNICRON_TOML}')
        os.kill(pid, signal.SIGHUP)
        until("alice is an admin", alice_pauses)
        assert stage.unicrond_pid() == pid
    finally:
        file.write_text(UNICRON_TOML)
        os.kill(pid, signal.SIGHUP)


@pytest.fixture
def remote(stage: Stage) -> Iterator[Stage]:
    """Its API listens with TLS too; nodes have no socket of unicrond's and go there."""
    folder, toml = stage.lab.paths.inside("/etc/unicron"), stage.lab.paths.inside(CONFIGURATION)
    pid = stage.unicrond_pid()
    assert pid is not None
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    made += ["-subj", "/CN=head", "-addext", "subjectAltName=DNS:head"]
    stage.lab.exec([*made, "-keyout", "/etc/unicron/key.pem", "-out", "/etc/unicron/tls.pem"])
    stage.lab.exec(["chown", "unicron", "/etc/unicron/key.pem"])
    toml.write_text(TLS_TOML + UNICRON_TOML)
    os.kill(pid, signal.SIGHUP)
    until("TLS", lambda: stage.lab.exec(["unicronctl", "status"], node="n1", check=False).stdout)
    yield stage
    toml.write_text(UNICRON_TOML)
    os.kill(pid, signal.SIGHUP)
    for name in ("key.pem", "tls.pem"):
        (folder / name).unlink()


def test_from_another_host_unicronctl_goes_over_tls_as_whom_slurm_vouches_for(
    remote: Stage,
) -> None:
    def asks(*words: str, token: str = "") -> tuple[int, str]:
        env = {"SLURM_JWT": token} if token else {}
        ask = ["unicronctl", *words]
        done = remote.lab.exec(ask, node="n1", user="alice", env=env, check=False)
        return done.returncode, done.stdout + done.stderr

    def minted(seconds: int) -> str:
        words = ["scontrol", "token", "username=alice", f"lifespan={seconds}"]
        return remote.lab.exec(words, user="slurm").stdout.strip().removeprefix("SLURM_JWT=")

    token, brief = minted(300), minted(1)
    head, body, seal = token.split(".")
    forged = jwt.encode({"sun": "root", "exp": time.time() + 300}, "a guess at the key" * 4)
    assert asks("status")[0] == 0, "MUNGE vouches for alice"
    assert asks("status", token=token)[0] == 0
    assert asks("mode", "paused")[1] == asks("mode", "paused", token=token)[1]
    assert "alice may not" in asks("mode", "paused", token=token)[1]
    time.sleep(2)
    for bad in (brief, forged, f"{head}.{body}.{seal[::-1]}"):
        code, said = asks("status", token=bad)
        assert (code, "token" in said) == (1, True), said


def test_the_doctor_finds_this_installation_well(stage: Stage) -> None:
    done = stage.lab.exec(["unicronctl", "doctor", "--json"], check=False)
    ill = [one for one in json.loads(done.stdout) if one["state"] != "ok"]
    assert (ill, done.returncode) == ([], 0)
