"""A lost connection says so and resumes; many tabs share one; thousands of nodes scroll."""

from __future__ import annotations

import re

import pytest
from browser_support import ServedHub, relay_to
from conftest import OpenPage
from playwright.sync_api import CDPSession, Page, expect

FRAMES = 120
FRAME_S = 1 / 60


def shown_version(page: Page) -> int:
    expect(page.locator("#run-state")).to_contain_text("v")
    return int(re.findall(r"v(\d+)", page.locator("#run-state").inner_text())[0])


def test_a_lost_connection_is_said_and_resumes_without_a_reload(
    open_page: OpenPage, hub: ServedHub
) -> None:
    with relay_to(hub.url) as relay:
        page = open_page("#/overview", base=relay.url)
        expect(page.locator("#link-state")).to_have_text("Live")
        page.evaluate("window.unreloaded = true")
        before = shown_version(page)
        relay.cut()
        expect(page.locator("#link-state")).to_contain_text("Connection lost, retrying")
        page.locator("#pause").click()
        page.get_by_role("button", name="Pause the run").click()
        expect(page.locator("dialog .problem")).to_contain_text("The hub does not answer.")
        page.get_by_role("button", name="Cancel").click()
        hub.wait_for_version(before + 2)
        relay.mend()
        page.get_by_role("button", name="Retry now").click()
        expect(page.locator("#link-state")).to_have_text("Live")
        expect(page.locator("#run-state")).not_to_contain_text(f"v{before} ")
        assert page.evaluate("window.unreloaded")


def test_many_tabs_share_one_stream(open_page: OpenPage, hub: ServedHub) -> None:
    first = open_page("#/overview")
    tabs = [first.context.new_page() for _ in range(9)]  # a browser has six connections to a host
    for tab in tabs:
        tab.goto(f"{hub.url}/#/overview")
        tab.wait_for_selector("#main[data-ready]")
    for tab in (first, *tabs):
        expect(tab.locator("#link-state")).to_have_text("Live")


@pytest.mark.slow  # judges processor time, which is another on a busy machine
def test_ten_thousand_nodes_scroll_without_jank(open_page: OpenPage) -> None:
    page = open_page("#/nodes")
    table = page.locator("[role=table]")
    expect(table).to_have_attribute("aria-rowcount", "10001", timeout=90_000)
    # the page's own processor time a frame: what lies between frames on the clock is also that of
    # other programs, and of a rasteriser without a GPU
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = spent_s(meter)
    page.evaluate(
        """async (frames) => {
          const view = document.querySelector(".vt-view");
          for (let step = 0; step < frames; step += 1) {
            view.scrollTop += step % 10 ? 400 : 30_000;
            await new Promise(requestAnimationFrame);
          }
        }""",
        FRAMES,
    )
    a_frame_s = (spent_s(meter) - before) / FRAMES
    assert page.locator(".vt-body .vt-row").count() < 100
    assert a_frame_s < FRAME_S, f"{1000 * a_frame_s:.1f} ms a frame"


def spent_s(meter: CDPSession) -> float:
    """Seconds of a processor that the page's main thread has taken."""
    metrics = meter.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))
