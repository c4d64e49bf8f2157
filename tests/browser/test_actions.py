"""What an operator does from the browser happens in the run."""

from __future__ import annotations

from browser_support import ServedHub
from conftest import OpenPage
from playwright.sync_api import Page, expect


def state_of(hub: ServedHub, query: str) -> object:
    """A value of the ledger."""
    with hub.stage.ledger() as ledger:
        row = ledger.execute(query).fetchone()
    return None if row is None else row[0]


def confirm(page: Page, name: str) -> None:
    """Press the button of the open dialog, and wait until it is done."""
    dialog = page.locator("dialog")
    expect(dialog).to_be_visible()
    expect(dialog.locator(".consequences li").first).not_to_be_empty()
    dialog.get_by_role("button", name=name).click()
    expect(dialog).to_have_count(0, timeout=60_000)


def test_nothing_happens_until_it_is_confirmed(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page("#/overview")
    asked: list[str] = []
    page.on("request", lambda one: one.method == "POST" and asked.append(one.url))
    page.locator("#pause").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert asked == []


def test_the_run_is_paused_and_resumed(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page("#/overview")
    page.locator("#pause").click()
    page.get_by_label("Why").fill("to look at it")
    confirm(page, "Pause the run")
    expect(page.locator("#run-state")).to_contain_text("paused", timeout=60_000)
    expect(page.locator("#answer-health .sentence")).to_contain_text("to look at it")
    page.locator("#resume").click()
    confirm(page, "Resume the run")
    expect(page.locator("#pause")).to_be_visible(timeout=60_000)
    expect(page.locator("#run-state")).not_to_contain_text("paused", timeout=60_000)


def test_a_node_is_quarantined_and_released(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page(f"#/nodes/{hub.peer_id}")
    page.locator("#quarantine").click()
    page.get_by_label("Why").fill("something is odd")
    confirm(page, "Quarantine")
    expect(page.locator("h1 .pill")).to_contain_text("quarantined")
    expect(page.locator(".why")).to_contain_text("something is odd")
    page.locator("#release").click()
    confirm(page, "Release")
    expect(page.locator("h1 .pill")).not_to_contain_text("quarantined")


def test_a_node_is_banned_and_comes_back(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page(f"#/nodes/{hub.peer_id}")
    page.locator("#ban").click()
    page.get_by_role("button", name="Ban this node").click()
    expect(page.locator("dialog")).to_be_visible()  # a reason is wanted
    page.get_by_label("Why").fill("a test of the browser's")
    confirm(page, "Ban this node")
    expect(page.locator("h1 .pill")).to_contain_text("banned")
    assert hub.node is not None
    assert hub.node.wait() == 13  # the node was told, and has ended
    assert state_of(hub, "SELECT why FROM (SELECT json_extract(detail, '$.why') AS why FROM events"
                    " WHERE kind = 'node_banned' ORDER BY id DESC LIMIT 1)") == (
        "a test of the browser's"
    )  # fmt: skip
    page.evaluate("location.hash = '#/events'")
    expect(page.get_by_text("a test of the browser's").first).to_be_visible()
    page.evaluate(f"location.hash = '#/nodes/{hub.peer_id}'")
    page.locator("#unban").click()
    confirm(page, "Unban")
    expect(page.locator("h1 .pill")).to_contain_text("newcomer")
    hub.join()
