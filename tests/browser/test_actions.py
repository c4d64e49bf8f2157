"""What an operator does from the browser happens in the run."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

import pytest
from browser_support import ServedHub, peer_id_of
from conftest import PATIENCE_MS, OpenPage
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


def test_a_version_is_pinned_exported_and_gone_back_to(
    open_page: OpenPage, hub: ServedHub, tmp_path: Path
) -> None:
    page = open_page("#/overview")
    expect(page.locator("#run-state")).to_contain_text("v")
    version = int(re.findall(r"v(\d+)", page.locator("#run-state").inner_text())[0]) - 1
    page.evaluate(f"location.hash = '#/versions/{version}'")
    page.locator("#pin").click()
    confirm(page, "Pin")
    expect(page.locator("h1")).to_contain_text("pinned")
    with page.expect_download(timeout=PATIENCE_MS) as waited:
        page.locator("#export").click()
        expect(page.locator(".toast").last).to_contain_text(f"Version {version} was exported.")
    file = tmp_path / "version.zip"
    waited.value.save_as(file)
    with zipfile.ZipFile(file) as archive:
        names = [Path(name).name for name in archive.namelist()]
        assert "adapter_model.safetensors" in names
        (config,) = [name for name in archive.namelist() if name.endswith("adapter_config.json")]
        assert json.loads(archive.read(config))["peft_type"] == "LORA"
    page.locator("#rollback").click()
    confirm(page, f"Roll back to v{version}")
    page.evaluate("location.hash = '#/versions'")
    expect(page.locator(".vt-body").get_by_text(f"back to v{version}").first).to_be_visible()
    gone_back = "SELECT json_extract(detail, '$.to') FROM events WHERE kind = 'rolled_back'"
    assert state_of(hub, gone_back) == version
    page.evaluate(f"location.hash = '#/versions/{version}'")
    page.locator("#unpin").click()
    confirm(page, "Unpin")
    expect(page.locator("#pin")).to_be_visible()


@pytest.mark.slow
def test_a_cheat_is_seen_to_join_found_out_and_banned(open_page: OpenPage, hub: ServedHub) -> None:
    page = open_page("#/nodes")
    cheat = hub.cheat()
    peer_id = peer_id_of(cheat)
    page.get_by_label("Search").fill(peer_id[-10:])
    expect(page.locator(".vt-body .vt-row")).to_have_count(1)  # it comes without a reload
    expect(page.locator(".vt-body .vt-row a")).to_contain_text(peer_id[-10:])
    while not state_of(hub, "SELECT 1 FROM groups WHERE reason = 'audit_margin'"):
        page.wait_for_timeout(500)  # each of its groups is audited
    page.evaluate("location.hash = '#/overview'")
    page.locator("#main a", has_text="audit margin").click()  # of the reasons for rejections
    page.locator("#main tbody a[href^='#/rollouts/']").first.click()
    expect(page.locator("#main .why")).to_contain_text("is not the one that the claimed policy")
    page.locator("#main a[href^='#/nodes/']").click()
    expect(page.locator("h1")).to_contain_text(peer_id)
    expect(page.get_by_text("An honest node is never rejected for: audit margin")).to_be_visible()
    page.locator("#ban").click()
    page.get_by_label("Why").fill("its tokens are edited")
    confirm(page, "Ban this node")
    assert cheat.wait() == 13
    page.evaluate("location.hash = '#/events'")
    expect(page.get_by_text("its tokens are edited").first).to_be_visible()


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
