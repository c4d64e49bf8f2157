"""Takes the pictures of the dashboard that docs/operator.md shows, of a run made for them.

    python tests/browser/screenshots.py docs/images

One hub and three nodes learn to add on this machine for a minute or two; then a browser looks at
each page.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from browser_support import ServedHub, start_browser
from playwright.sync_api import Browser, sync_playwright

UPDATES = 30
SHOTS = (
    ("overview", "#/overview", 1280, 1000, "light"),
    ("rollout", "#/rollouts/{group}", 1280, 900, "light"),
    ("learner", "#/learner", 1280, 760, "dark"),
    ("phone", "#/overview", 360, 740, "dark"),
    ("public", "public", 900, 860, "light"),
)
_RUN = {
    "run": {"updates": 100_000, "id": "e2e"},
    "learner": {"groups_per_update": 16, "keep_checkpoints": 50},
    "sampling": {"group_size": 8},
    "evaluation": {"prompts": 64, "every": 8},
}


def main(folder: Path) -> None:
    """Make the run, and the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        hub = ServedHub(Path(root), **_RUN)
        try:
            hub.join()
            hub.stage.node(1)
            hub.stage.node(2)
            hub.wait_for_version(UPDATES)
            browser = start_browser(playwright)
            for shot in SHOTS:
                take(browser, hub, folder, *shot)
            browser.close()
        finally:
            hub.close()


def take(
    browser: Browser,
    hub: ServedHub,
    folder: Path,
    name: str,
    path: str,
    width: int,
    height: int,
    scheme: str,
) -> None:
    """One picture."""
    with hub.stage.ledger() as ledger:
        query = "SELECT min(id) FROM groups WHERE update_no >= 3 AND split = 'train'"
        (group,) = ledger.execute(query).fetchone()
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    page = context.new_page()
    page.goto(f"{hub.url}/{path.format(group=group)}")
    page.wait_for_selector("#main[data-ready]")
    page.wait_for_timeout(2500)  # until each chart has its data
    page.screenshot(path=folder / f"dashboard-{name}.png")
    context.close()
    print(folder / f"dashboard-{name}.png", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
