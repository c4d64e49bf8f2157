"""One hub and one browser for all tests of the dashboard; a new page, closely watched, for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
from browser_support import CROWD, ServedHub, chromium_path, start_browser
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if chromium_path() is None:
        why = "there is no Chromium: apt-get install chromium"
        for item in items:
            if "browser" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = start_browser(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHub]:
    """A run with a crowd in its ledger, one node, and a few updates made."""
    served = ServedHub(tmp_path_factory.mktemp("hub"), crowd=CROWD)
    try:
        served.join()
        served.wait_for_version(3)
        yield served
    finally:
        served.close()


OpenPage = Callable[..., Page]
PATIENCE_MS = 60_000  # only what never comes takes so long
expect.set_options(timeout=PATIENCE_MS)


class Watcher:
    """Notes what no page may ever do: fail, break the policy, or ask another host."""

    def __init__(self, url: str) -> None:
        self.host = urlsplit(url).hostname
        self.wrongs: list[str] = []

    def watch(self, context: BrowserContext) -> None:
        context.on("weberror", lambda error: self.wrongs.append(f"error: {error.error}"))
        context.on("console", lambda said: self._said(said.type, said.text))
        context.on("request", lambda request: self._asked(request.url))
        context.on("dialog", lambda dialog: (self.wrongs.append("dialog"), dialog.dismiss()))

    def _said(self, kind: str, text: str) -> None:
        by_itself = "status of" in text or "net::ERR_" in text  # the browser, of a failed request
        if "Content Security Policy" in text or (kind == "error" and not by_itself):
            self.wrongs.append(f"{kind}: {text}")

    def _asked(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != self.host:
            self.wrongs.append(f"asked {url}")


@pytest.fixture
def open_page(browser: Browser, hub: ServedHub) -> Iterator[OpenPage]:
    """Opens a page of the dashboard in a context of its own and waits until it is drawn."""
    contexts: list[tuple[BrowserContext, Watcher]] = []

    def open_one(path: str = "#/overview", *, base: str = "", **settings: object) -> Page:
        url = base or hub.url
        watcher = Watcher(url)
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        context.set_default_timeout(PATIENCE_MS)
        watcher.watch(context)
        contexts.append((context, watcher))
        page = context.new_page()
        page.goto(f"{url}/{path}")
        page.wait_for_selector("#main[data-ready], form.login")
        return page

    yield open_one
    wrongs = [wrong for _, watcher in contexts for wrong in watcher.wrongs]
    for context, _ in contexts:
        context.close()
    assert wrongs == []
