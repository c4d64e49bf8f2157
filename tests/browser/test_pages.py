"""Every page shows what the hub says, and goes on showing it as it changes."""

from __future__ import annotations

import re

import pytest
from browser_support import ServedHub
from conftest import OpenPage
from playwright.sync_api import expect

PAGES = ["overview", "nodes", "versions", "rollouts", "learner", "planner", "events"]


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_drawn_without_a_problem(open_page: OpenPage, name: str) -> None:
    page = open_page(f"#/{name}")
    expect(page.locator("#nav a[aria-current=page]")).to_have_attribute("data-name", name)
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".problem")).to_have_count(0)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_overview_answers_the_three_questions_and_follows_the_run(
    open_page: OpenPage, hub: ServedHub
) -> None:
    page = open_page("#/overview")
    for question in ("learning", "health", "limits"):
        expect(page.locator(f"#answer-{question} .word")).not_to_be_empty()
        expect(page.locator(f"#answer-{question} .sentence")).not_to_be_empty()
    expect(page.locator("#link-state")).to_have_text("Live")
    expect(page.locator("#run-state")).to_contain_text("v")
    shown = int(re.findall(r"v(\d+)", page.locator("#run-state").inner_text())[0])
    hub.wait_for_version(shown + 1)
    expect(page.locator("#run-state")).not_to_contain_text(f"v{shown} ")
    expect(page.locator("figure.chart canvas").first).to_be_visible()


def test_all_nodes_are_there_and_can_be_searched_and_sorted(
    open_page: OpenPage, hub: ServedHub
) -> None:
    page = open_page("#/nodes")
    table = page.locator("[role=table]")
    expect(table).to_have_attribute("aria-rowcount", "10001", timeout=60_000)
    assert page.locator(".vt-body .vt-row").count() < 100
    page.get_by_label("Search").fill(hub.peer_id[-10:])
    expect(table).to_have_attribute("aria-rowcount", "2")
    expect(page.locator(".vt-body .vt-row a")).to_contain_text(hub.peer_id[-10:])
    page.get_by_label("Search").fill("audit margin")
    expect(page.locator(".vt-body .vt-row").first).to_contain_text("audit margin")
    page.get_by_label("Search").fill("no such node")
    expect(page.get_by_text("No node matches.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    page.get_by_role("button", name="Accepted").click()
    heading = page.locator("[role=columnheader]", has_text="Accepted")
    expect(heading).to_have_attribute("aria-sort", "descending")
    rows = page.locator(".vt-body .vt-row").evaluate_all(
        "all => all.map((row) => [Number(row.getAttribute('aria-rowindex')),"
        " row.children[3].textContent])"
    )
    counts = [int(text.replace(",", "")) for _, text in sorted(rows)]
    assert len(counts) > 10
    assert counts == sorted(counts, reverse=True)


def test_a_node_is_told_in_full(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page(f"#/nodes/{hub.peer_id}")
    expect(page.locator("h1")).to_contain_text(hub.peer_id)
    expect(page.locator(".stats").first).to_contain_text("torch")
    expect(page.get_by_role("button", name="Ban")).to_be_visible()


JOINED = """async ([known, told]) => {
  const { joined } = await import("/static/js/history.js");
  const overview = (versions) => ({
    version: versions.at(-1) ?? 0,
    reward: { updates: versions.map((version) => ({ version })), heldout: [] },
  });
  return joined(overview(known), overview(told))?.reward.updates.map((one) => one.version) ?? null;
}"""


def test_what_the_stream_tells_of_rewards_is_joined_to_what_was_known(open_page: OpenPage) -> None:
    page = open_page("#/planner")
    for known, told, whole in (
        ([1, 2, 3], [2, 3, 4], [1, 2, 3, 4]),
        ([1, 2, 3], [3, 5], [1, 2, 3, 5]),
        ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
        ([], [1], [1]),
        ([1, 2], [4, 5], None),  # what lies between is not known
        ([], [3, 4], None),
        ([1, 2, 3], [1, 2], None),  # a hub that was restored
        ([*range(1, 301)], [300, 301], [*range(2, 302)]),
    ):
        assert page.evaluate(JOINED, [known, told]) == whole


def test_news_leave_open_what_somebody_reads(open_page: OpenPage) -> None:
    page = open_page("#/events")
    page.locator("#main details summary").first.click()
    expect(page.locator("#main details[open] dd").first).to_be_visible()
    newest = page.locator("#main tbody tr").first.inner_text()
    while page.locator("#main tbody tr").first.inner_text() == newest:
        page.wait_for_timeout(200)
    expect(page.locator("#main details[open]")).to_have_count(1)
