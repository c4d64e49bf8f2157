"""Names and transcripts are the adversary's text: none of it runs, hides, or breaks a page."""

from __future__ import annotations

import json
from typing import Any

import pytest
from browser_support import ServedHub
from conftest import OpenPage
from playwright.sync_api import Page, Route, expect

HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    '"><svg onload=window.hacked=1>',
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "\u202eevil\u202c \u2066hidden\u2069 \u200f",
    "zero\u200bwidth\u00ad\ufeff",
    "Z" + "\u0300\u0301\u0302\u0303\u0304\u0305" * 60,
    "\x00\x07\x1b[31mred\x7f",
    "\ud800 half of a pair",
    "line\u2028separator",
    "long" * 5000,
    "__proto__",
    "\U000e0041\U000e0042 tags",
]
KEPT = {"kind", "state", "standing", "split", "limit", "node", "finish", "code", "csrf", "doing"}
KEPT |= {"names"}  # of metrics: they are asked for by these
"""Fields whose values are the hub's own words, or that name things."""


def poisoned(value: Any, turn: list[int], key: str = "") -> Any:
    """An answer of the hub in which every text that could be a stranger's is hostile."""
    if isinstance(value, dict):
        return {name: poisoned(one, turn, name) for name, one in value.items()}
    if isinstance(value, list):
        return [poisoned(one, turn, key) for one in value]
    if isinstance(value, str) and key not in KEPT:
        turn[0] += 1
        return HOSTILE[turn[0] % len(HOSTILE)]
    return value


def poison(page: Page) -> None:
    """Every answer that this page gets from now on is poisoned."""
    turn = [0]

    def answer(route: Route) -> None:
        if route.request.url.endswith("/api/v1/events"):
            route.continue_()
            return
        response = route.fetch()
        body = poisoned(response.json(), turn) if response.ok else response.json()
        # what cannot be written as UTF-8 is sent as an escape, as JSON may
        route.fulfill(response=response, body=json.dumps(body))

    page.route("**/api/v1/**", answer)


def harmless(page: Page, place: str) -> None:
    """Nothing of a stranger's has become anything but text."""
    assert page.evaluate("window.hacked") is None, place
    assert page.locator("#main .problem").count() == 0, place
    page_alone = "#main :is(script, iframe, object, embed, img, svg:not(.icon), form:not(.login))"
    assert page.locator(page_alone).count() == 0, place
    links = page.locator("#main a").evaluate_all("all => all.map((one) => one.protocol)")
    assert set(links) <= {"http:", "blob:"}, place
    shown = page.locator("#main").inner_text()
    for odd in ("\u202e", "\u2066", "\u200b", "\x07", "\x1b", "\U000e0041"):
        assert odd not in shown, f"{odd!r} acts in {place}"
    assert not page.evaluate(TOO_WIDE), place


TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
  [...document.querySelectorAll("#main *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth)
    .map((one) => `${one.tagName}.${one.className} in ${one.parentElement.className}`).slice(0, 9)
"""


@pytest.mark.parametrize("width", [1280, 360])
def test_hostile_words_on_every_page_stay_words(
    open_page: OpenPage, hub: ServedHub, width: int
) -> None:
    page = open_page("#/planner", viewport={"width": width, "height": 800})
    poison(page)
    for place in ["overview", "nodes", f"nodes/{hub.peer_id}", "versions", "versions/1",
                  "rollouts", "rollouts/1", "learner", "planner", "events"]:  # fmt: skip
        page.evaluate("document.getElementById('main').removeAttribute('data-ready')")
        page.evaluate(f"location.hash = '#/{place}'")
        page.wait_for_selector("#main[data-ready]")
        harmless(page, place)


def test_what_would_not_be_seen_is_shown(open_page: OpenPage) -> None:
    page = open_page("#/planner")
    poison(page)
    page.evaluate("location.hash = '#/rollouts/1'")
    expect(page.locator(".odd", has_text="U+202E").first).to_be_visible()
    expect(page.locator(".odd", has_text="marks").first).to_be_visible()
    expect(page.locator(".cut").first).to_contain_text("more characters")
    expect(page.locator(".answer-text").first).to_contain_text("<script>")


def test_a_node_with_a_hostile_name_does_no_harm(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page(f"#/nodes/{hub.peer_id}")
    page.locator("#annotate").click()
    page.get_by_label("Name", exact=True).fill("<img src=x onerror=alert(1)>\u202eexe")
    page.get_by_role("textbox", name="Note").fill("<script>alert(1)</script>\n" * 20)
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_contain_text("<img src=x onerror=alert(1)>U+202Eexe")
    harmless(page, "the node's page")
    page.goto(f"{hub.url}/public")
    expect(page.get_by_text("<img src=x onerror=alert(1)>").first).to_be_visible()
    harmless(page, "the public page")
    page.goto(f"{hub.url}/#/nodes/{hub.peer_id}")
    page.locator("#annotate").click()
    page.get_by_label("Name", exact=True).fill("")
    page.get_by_role("textbox", name="Note").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("No note.")).to_be_visible()
