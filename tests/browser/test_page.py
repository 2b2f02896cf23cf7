"""The web page in a real browser, over the API's process and a filled store."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from conftest import Served, Sight
from filled import HOSTILE, LARGE, SMALL, end_a_run
from playwright.sync_api import Page, Route, expect

pytestmark = pytest.mark.browser

See = Callable[[Served], Sight]
DRAWN_MS = 250.0  # of 10,000 nodes, on two cores that others use


def figures(page: Page) -> dict[str, str]:
    expect(page.locator(".figure")).to_have_count(5)
    found = page.locator(".figure")
    return {
        found.nth(at).locator("span").inner_text(): found.nth(at).locator("b").inner_text()
        for at in range(5)
    }


def test_the_cluster_is_seen_at_a_glance_and_nothing_comes_from_elsewhere(
    small: Served, see: See
) -> None:
    sight = see(small)
    page = sight.open()
    told = figures(page)
    assert told["runs"] == str(SMALL.runs)
    assert told["nodes out"] == "2"
    expect(page.locator("#legend")).to_contain_text("in a run")
    expect(page.locator("#health")).to_contain_text("Slurm ok")
    expect(page.locator("#health")).to_contain_text("paused: action drain")
    assert page.title() == "alpha · Unicron"
    assert all(url.startswith(small.url) for url in sight.asked)
    assert sight.complaints == []


def test_keys_walk_over_the_map_and_open_the_story_of_a_node(small: Served, see: See) -> None:
    page = see(small).open()
    figures(page)
    page.keyboard.press("m")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("gpu02")
    page.keyboard.press("Enter")
    expect(page.locator("#story h2")).to_have_text("node gpu02")
    page.keyboard.press("Escape")
    expect(page.locator("#story")).to_be_hidden()
    expect(page.locator("#map")).to_be_focused()


def test_a_pointer_opens_the_node_under_it(small: Served, see: See) -> None:
    page = see(small).open()
    figures(page)
    page.locator("#map").click(position={"x": 30, "y": 40})
    expect(page.locator("#story h2")).to_have_text("node gpu01")


def test_a_run_shows_its_size_over_generations_and_what_a_user_wrote_stays_text(
    small: Served, see: See
) -> None:
    sight = see(small)
    page = sight.open("runs")
    row = page.locator("#runs tr", has_text="4701")
    expect(row).to_contain_text(HOSTILE)
    expect(row).to_contain_text("T")  # of its WAF
    expect(row).to_contain_text(re.compile(r"9[789]\.\d\d %"))  # of what it held, trained
    page.keyboard.press("/")
    page.keyboard.type("4701")
    expect(page.locator("#runs tbody tr")).to_have_count(1)
    row.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#story h2")).to_have_text("run 4701")
    expect(page.locator("#story .chart text").first).to_have_text("g1: 3")
    page.keyboard.press("Escape")
    expect(row).to_be_focused()
    assert page.locator("main img").count() == 0
    assert sight.complaints == []


def test_an_incident_tells_what_was_seen_decided_and_done(small: Served, see: See) -> None:
    page = see(small).open("incidents")
    expect(page.locator("#incidents tbody tr")).to_have_count(3)
    page.get_by_label("those that are over too").check()
    expect(page.locator("#incidents tbody tr")).to_have_count(SMALL.incidents)
    page.locator("#incidents tr", has_text="i6").click()
    story = page.locator("#story")
    expect(story.locator("h2")).to_have_text("incident 6")
    expect(story.locator("pre")).to_contain_text("address not mapped")
    for kind in ("signal", "decision", "action", "outcome"):
        expect(story.locator(f".timeline li.{kind}")).to_have_count(1)
    expect(story.locator(".alternatives tr")).to_have_count(3)
    expect(story.locator(".alternatives .chosen")).to_contain_text("about 25 s of the run")


def test_decisions_stand_with_what_else_was_weighed_and_its_price(small: Served, see: See) -> None:
    page = see(small).open("decisions")
    expect(page.locator("#decisions article")).to_have_count(SMALL.incidents)
    expect(page.locator("#plan")).to_contain_text("WAF 41.0 PFLOP/s")
    expect(page.locator("#plan")).to_contain_text("no spare node")
    expect(page.locator("#trust tbody tr")).to_have_count(1)
    expect(page.locator("#trust")).to_contain_text("not yet")


def test_gpu_time_is_told_by_cause_and_by_whom_it_was_lost(small: Served, see: See) -> None:
    page = see(small).open()
    figures(page)
    page.keyboard.press("5")
    usage = page.locator("#usage")
    expect(usage.locator("h2").first).to_have_text("All GPU time: 3,072 GPU-hours")  # 128 GPUs
    expect(usage.locator(".legend").first).to_contain_text("training")
    for cause in ("starting", "detection", "transition", "unmended"):
        expect(usage.locator(".legend").nth(1)).to_contain_text(cause)
    expect(usage.locator("tbody tr")).to_have_count(SMALL.runs + 1)  # and a job of somebody else
    page.locator("#by").select_option("user")
    expect(usage.locator("tbody tr", has_text="erin")).to_contain_text("768")
    page.locator("#span").select_option("1 hour")
    expect(usage.locator("h2").first).to_have_text("All GPU time: 128 GPU-hours")


def test_what_changes_is_seen_without_asking_again(mortal: Served, see: See) -> None:
    page = see(mortal).open()
    assert figures(page)["runs"] == str(SMALL.runs)
    end_a_run(mortal.database)
    expect(page.locator(".figure b").first).to_have_text(str(SMALL.runs - 1), timeout=4_000)


def test_the_theme_is_chosen_and_remembered(small: Served, see: See) -> None:
    page = see(small).open()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_who_is_asked_for_a_token_gives_it_once_and_it_is_in_no_address(
    small: Served, see: See
) -> None:
    sight = see(small)
    page = sight.page

    def knows(route: Route) -> None:
        given = dict(route.request.headers)
        if given.pop("authorization", "") == "Bearer good":
            route.continue_(headers=given)
        else:
            route.fulfill(status=401, json={"code": "unauthenticated", "message": "who are you?"})

    page.route("**/v1/**", knows)
    page.goto(f"{small.url}/#cluster")
    expect(page.locator("#login")).to_be_visible()
    page.locator("#token").fill("SLURM_JWT=good")
    page.keyboard.press("Enter")
    assert figures(page)["runs"] == str(SMALL.runs)
    expect(page.locator("#trouble")).to_be_hidden()
    page.reload()
    assert figures(page)["runs"] == str(SMALL.runs)
    assert not any("good" in url for url in sight.asked)


def test_an_api_that_is_gone_is_told_and_what_was_known_stays(mortal: Served, see: See) -> None:
    page = see(mortal).open()
    figures(page)
    mortal.process.kill()
    expect(page.locator("#trouble")).to_contain_text("what is shown may be old", timeout=15_000)
    assert figures(page)["runs"] == str(SMALL.runs)


@pytest.mark.parametrize("width", [390, 1400])
def test_ten_thousand_nodes_are_drawn_without_a_pause(large: Served, see: See, width: int) -> None:
    page = see(large).page
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{large.url}/#cluster")
    expect(page.locator("#legend")).to_contain_text("down", timeout=30_000)
    assert figures(page)["runs"] == f"{LARGE.runs:,}"
    drawn = page.evaluate("document.getElementById('map').dataset.drawnMs")
    assert float(drawn) < DRAWN_MS
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "no sideways scroll"
