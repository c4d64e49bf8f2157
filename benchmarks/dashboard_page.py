"""What a browser makes of a served dashboard: first paint, weight, and what updates cost it.

Run by benchmarks/dashboard.py beside a hub of many nodes and events; prints one JSON object. A
browser without a profile opens the overview, several times anew; then it stays on each page that
follows the run, and its own long tasks are counted, and the processor time of its main thread.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

OPENED = 5
PLACES = ("overview", "nodes", "rollouts", "events")
FLAGS = "--no-sandbox --disable-gpu --no-first-run --disable-background-networking"
FRAME_MS = 1000 / 60
FIRST_PAINT = """() => new Promise((done) => {
  const seen = () => performance.getEntriesByName("first-contentful-paint")[0];
  const look = () => (seen() ? done(seen().startTime) : requestAnimationFrame(look));
  look();
})"""
WEIGHT = """() => {
  const all = [...performance.getEntriesByType("navigation"),
    ...performance.getEntriesByType("resource").filter((one) => !one.name.includes("/api/"))];
  return all.reduce((sum, one) => sum + one.encodedBodySize, 0);
}"""
WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => {
    window.longTasks.push(...list.getEntries().map((one) => one.duration));
  }).observe({ type: "longtask" });
}"""


def open_page(browser: Browser, url: str) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(url)
    page.wait_for_selector("#main[data-ready]")
    return page


def first_paints(browser: Browser, url: str) -> tuple[list[float], list[float], int]:
    """Milliseconds until something, and until the overview was on the screen; bytes of the page's
    files as they were sent."""
    paints, whole, weight = [], [], 0
    for _ in range(OPENED):
        page = open_page(browser, url)
        whole.append(float(page.evaluate("performance.now()")))
        paints.append(float(page.evaluate(FIRST_PAINT)))
        weight = int(page.evaluate(WEIGHT))
        page.context.close()
    return paints, whole, weight


def weight_of_all(browser: Browser, url: str) -> int:
    """Bytes of the page's files, once each of its pages was open."""
    page = open_page(browser, url)
    names = page.locator("#nav a[data-name]").evaluate_all("all => all.map((one) => one.hash)")
    for name in names:
        go(page, str(name))
    weight = int(page.evaluate(WEIGHT))
    page.context.close()
    return weight


def go(page: Page, place: str) -> None:
    page.evaluate("document.getElementById('main').removeAttribute('data-ready')")
    page.evaluate(f"location.hash = {json.dumps(place + '?')}")
    page.wait_for_selector("#main[data-ready]")


def following(browser: Browser, url: str, place: str, seconds: float) -> dict[str, float]:
    """What it costs to stay on a page that follows the run."""
    page = open_page(browser, url)
    go(page, f"#/{place}")
    page.wait_for_timeout(1500)  # until it has drawn what it begins with
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.evaluate(WATCH)
    before = spent_ms(meter)
    page.wait_for_timeout(1000 * seconds)
    spent = spent_ms(meter) - before
    tasks = page.evaluate("window.longTasks")
    page.context.close()
    return {
        "busy": spent / (1000 * seconds),
        "long_tasks": len(tasks),
        "longest_ms": max(tasks, default=0.0),
    }


def spent_ms(meter: Any) -> float:
    metrics = meter.send("Performance.getMetrics")["metrics"]
    return 1000 * float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=8)
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS.split())
        open_page(browser, args.url).context.close()  # the browser's own start is not the page's
        paints, whole, weight = first_paints(browser, args.url)
        found = {
            "first_paint_ms": statistics.median(paints),
            "overview_ms": statistics.median(whole),
            "first_bytes": weight,
            "all_bytes": weight_of_all(browser, args.url),
            "following": {
                place: following(browser, args.url, place, args.seconds) for place in PLACES
            },
        }
        browser.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
