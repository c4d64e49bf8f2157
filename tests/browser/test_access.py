"""Everybody can use it: screen readers, keyboards, phones; and only those with the token get in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser_support import ServedHub
from conftest import OpenPage
from playwright.sync_api import Page, expect

PLACES = ["overview", "nodes", "versions", "versions/1", "rollouts", "rollouts/1", "learner"]
PLACES += ["planner", "events"]
SERIOUS = ("serious", "critical")


ALL = {"resultTypes": ["violations"]}
COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
"""All that may be another in the dark: what a page is made of is the same in both schemes."""


def serious_findings(page: Page, rules: dict[str, Any] = ALL) -> list[tuple[str, list[Any]]]:
    """What axe-core finds that keeps somebody from using the page."""
    found = Axe().run(page, options=rules).response["violations"]
    return [
        (one["id"], [node["target"] for node in one["nodes"]])
        for one in found
        if one["impact"] in SERIOUS
    ]


@pytest.mark.parametrize(("scheme", "rules"), [("light", ALL), ("dark", COLOURS)])
def test_axe_finds_nothing_serious_on_any_page(
    open_page: OpenPage, hub: ServedHub, scheme: str, rules: dict[str, Any]
) -> None:
    page = open_page(
        "#/events", color_scheme=scheme, bypass_csp=True
    )  # axe is a script of the test's
    for place in [*PLACES, f"nodes/{hub.peer_id}"]:
        go(page, place)
        assert serious_findings(page, rules) == [], place
    page.locator("#pause").click()
    expect(page.locator("dialog")).to_be_visible()
    assert serious_findings(page, rules) == [], "the dialog"


def test_axe_finds_nothing_serious_on_the_public_page(open_page: OpenPage) -> None:
    page = open_page("public", bypass_csp=True)
    assert serious_findings(page) == []


def go(page: Page, place: str) -> None:
    """Another page, once it is drawn."""
    page.evaluate("document.getElementById('main').removeAttribute('data-ready')")
    page.evaluate(f"location.hash = '#/{place}?'")  # also to where it is
    page.wait_for_selector("#main[data-ready]")
    expect(page.locator("#main .problem")).to_have_count(0)


def test_every_page_fits_a_phone(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page(viewport={"width": 360, "height": 740})
    for place in [*PLACES, f"nodes/{hub.peer_id}"]:
        go(page, place)
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"{place} is {width} px wide"
    menu = page.get_by_role("button", name="Menu")
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    page.locator("#nav").get_by_role("link", name="Events").click()
    expect(page.locator("h1")).to_have_text("Events and alerts")
    expect(page.locator("#nav")).to_be_hidden()


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.textContent"))


def test_all_can_be_done_with_the_keyboard_alone(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page("#/overview")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the page"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("Pages").get_by_role("link", name="Nodes").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#main[data-ready=nodes]")
    assert page.evaluate("document.activeElement.id") == "main"
    page.get_by_label("Search").focus()
    page.keyboard.type(hub.peer_id[-10:])
    expect(page.locator("[role=table]")).to_have_attribute("aria-rowcount", "2", timeout=60_000)
    page.locator(".vt-view").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector("#ban")
    page.locator("#ban").focus()
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_be_visible()
    for _ in range(8):  # the focus stays in the dialog
        page.keyboard.press("Tab")
        inside = "!document.activeElement || document.activeElement === document.body"
        assert page.evaluate(f"{inside} || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "ban"


def test_arrow_keys_move_through_the_crowd(open_page: OpenPage) -> None:
    page = open_page("#/nodes")
    page.locator(".vt-view").focus()
    page.keyboard.press("ArrowDown")
    first = focused(page)
    page.keyboard.press("PageDown")
    page.keyboard.press("PageDown")
    assert focused(page) != first
    place = page.evaluate("document.activeElement.closest('.vt-row').getAttribute('aria-rowindex')")
    assert int(place) > 20
    page.keyboard.press("Home")
    assert page.evaluate(
        "document.activeElement.closest('.vt-row').getAttribute('aria-rowindex')"
    ) == "2"  # fmt: skip


def test_nothing_moves_for_who_wants_no_motion(open_page: OpenPage) -> None:
    page = open_page("#/overview", reduced_motion="reduce")
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter((one) => {"
        " const style = getComputedStyle(one);"
        " return style.transitionDuration !== '0s' || style.animationName !== 'none'; }).length"
    )
    assert moving == 0


# --- with a token ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A hub that asks for a token; nobody joins it."""
    section = {"port": 0, "public": True, "token_file": "dashboard.token"}
    served = ServedHub(tmp_path_factory.mktemp("guarded"), dashboard=section)
    try:
        yield served
    finally:
        served.close()


def token_of(hub: ServedHub) -> str:
    path: Path = hub.stage.run / "dashboard.token"
    return path.read_text(encoding="utf-8").strip()


def test_without_the_token_nobody_gets_in(open_page: OpenPage, guarded: ServedHub) -> None:
    page = open_page("", base=guarded.url)
    field = page.get_by_label("Token")
    expect(field).to_be_focused()
    field.fill("not the token at all")
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("[role=alert] .problem")).to_be_visible()
    assert page.evaluate("fetch('/api/v1/overview').then((answer) => answer.status)") == 401
    field.fill(token_of(guarded))
    page.keyboard.press("Enter")
    page.wait_for_selector("#main[data-ready=overview]")
    assert page.evaluate("document.cookie") == ""  # no script can read it
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()


def test_the_public_page_needs_no_token_and_tells_no_address(
    open_page: OpenPage, guarded: ServedHub
) -> None:
    page = open_page("public", base=guarded.url)
    expect(page.get_by_text("How to join")).to_be_visible()
    expect(page.locator("pre")).to_contain_text("echo-node join")
    said = page.evaluate("fetch('/api/v1/public').then((answer) => answer.json())")
    told = {key: value for key, value in said.items() if key != "bootstrap"}
    assert "/ip4/" not in str(told) and "12D3Koo" not in str(told)
