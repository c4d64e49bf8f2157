"""A hub in this process, operated through the SDK, over HTTP and by commands, with a real node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from peft import PeftConfig

from echo_hub import (
    AsyncHubClient,
    Hub,
    HubClient,
    NodeEvent,
    Publication,
    Rollout,
    UpdateFacts,
)
from echo_p2p.errors import ApiRefusedError, ConfigError, NetError, RunFailedError

SMALL = {"learner": {"groups_per_update": 4}, "dashboard": {"enabled": True, "port": 0}}


def echo_hub(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "echo_hub.cli", *arguments, "--json"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(900)
def test_a_run_through_the_sdk(tmp_path: Path) -> None:
    told: list[Any] = []
    root = tmp_path / "run"
    with Hub.local(
        nodes=1, folder=root, settings=SMALL,
        on_update=told.append, on_publish=told.append, on_rollout=told.append, on_node=told.append,
    ) as hub:  # fmt: skip
        made = hub.run(updates=2, show=False)
        assert [update.version for update in made] == [1, 2]
        kinds = {kind: [one for one in told if isinstance(one, kind)] for kind in _KINDS}
        assert kinds[UpdateFacts] == made
        assert [one.version for one in kinds[Publication]] == [1, 2]
        assert kinds[NodeEvent][0].kind == "joined"
        assert len(kinds[Rollout]) >= 64
        one = kinds[Rollout][0]
        life = echo_hub("trace", str(root), one.trace)
        assert life["node"] == one.node == kinds[NodeEvent][0].node
        assert life["rollouts"][0]["reward"] == one.reward

        rows = hub.metrics()
        assert [row["version"] for row in rows] == [1, 2]
        assert list(hub.frame()["reward_mean"]) == [row["reward_mean"] for row in rows]
        assert PeftConfig.from_pretrained(hub.adapter()).r == 16
        with pytest.raises(ConfigError, match="version 9 is not kept"):
            hub.adapter(9)

        assert hub.url is not None
        _operate(hub, root, one.node)
        trio.run(_operate_in_trio, hub)
        _examples_of_the_docs(hub.url)
        assert hub.evaluate(prompts=8).all.prompts == 8
        version = hub.version
    with pytest.raises(NetError, match="cannot be asked"), HubClient("http://127.0.0.1:9") as gone:
        gone.overview()
    assert Hub(root).version == version  # from its ledger, without opening it


_KINDS = (UpdateFacts, Publication, Rollout, NodeEvent)


def _operate(hub: Hub, root: Path, node: str) -> None:
    """What an operator does, from elsewhere and by commands, while the hub is open."""
    assert hub.url is not None
    with HubClient(hub.url) as client:
        assert client.health().status == "ok"
        assert client.overview().version == 2
        (line,) = client.nodes().nodes
        assert (line.node, line.standing) == (node, "proven")
        assert client.annotate(node, name="mine", note="in the cellar").done
        assert client.node(node).note == "in the cellar"
        assert client.pin(1).done
        assert [one.pinned for one in client.versions().versions] == [False, True, False]
        group = client.rollouts("best", limit=1).groups[0]
        assert len(client.group(group.group).rollouts) == 8
        assert "reward_mean" in client.metrics().names
        assert client.series(["reward_mean"]).series[0].points[-1].version == 2
        assert client.planner().sentence
        assert client.events(kinds=["published"]).events[0].detail["version"] == 2
        taken = client.export(root.parent / "taken", version=1)
        assert _weights(taken) == _weights(hub.adapter(1))
        assert (taken / "README.md").is_file()
        with pytest.raises(ApiRefusedError, match="version 9 is not") as refused:
            client.export(root.parent / "nothing", version=9)
        assert not (root.parent / "nothing").exists()
        with pytest.raises(ApiRefusedError, match="there is no node") as refused:
            client.node("1" * 45)
        assert (refused.value.status, refused.value.code) == (404, "not_found")
        kinds = set()
        for event in client.watch():
            kinds.add(event.kind)
            if "overview" in kinds:
                break
    assert "in quarantine" in echo_hub("quarantine", str(root), node)["done"]
    assert "quarantine any more" in echo_hub("release", str(root), node)["done"]
    assert echo_hub("unpin", str(root), "1")["done"]


def _weights(folder: Path) -> bytes:
    return (folder / "adapter_model.safetensors").read_bytes()


async def _operate_in_trio(hub: Hub) -> None:
    assert hub.url is not None
    async with AsyncHubClient(hub.url) as client:
        assert (await client.version(2)).version == 2
        taken = await client.export(hub.folder.parent / "newest")
        assert _weights(taken) == _weights(hub.adapter(2))
        with trio.fail_after(100):
            async for event in client.watch():
                if event.kind == "overview":
                    break


class EnoughError(Exception):
    """What a callback raises to end the training."""


def _examples_of_the_docs(url: str) -> None:
    """Level 3 of docs/sdk.md, against a hub that runs."""
    text = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        if "HubClient(" in block:
            exec(block, names)
    names["look_after"](url, None)
    assert trio.run(names["ban_cheats"], url, None) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pause_and_a_return_to_an_earlier_version(tmp_path: Path) -> None:
    """By commands, and over the API, while a real learner learns."""
    root = str(tmp_path / "run")
    done: list[str] = []

    def operate(update: UpdateFacts) -> None:
        if update.version == 2 and not done:
            done.append(echo_hub("pin", root, "1")["done"])
            done.append(echo_hub("pause", root, "--why", "tea")["done"])
        elif len(done) > 2:
            assert hub.url is not None
            done.append(echo_hub("rollback", root, "1")["done"])
            with HubClient(hub.url) as client:
                done.append(client.roll_back(1).sentence)
                done.append(client.publish().sentence)
                assert _weights(client.export(tmp_path / "taken", version=1)) == _weights(
                    hub.adapter(1)
                )
            raise EnoughError

    kept = {
        "learner": {"groups_per_update": 4, "keep_checkpoints": 1000},  # commands take time
        "dashboard": {"enabled": True, "port": 0},
    }
    with Hub.local(nodes=1, folder=root, settings=kept, on_update=operate) as hub:
        with pytest.raises(RunFailedError, match="tea") as paused:
            hub.run(show=False)
        assert "hub.resume()" in paused.value.fix
        assert hub.status()["paused"]["why"].startswith("tea")
        hub.resume()
        assert hub.status()["paused"] is None
        done.append("resumed")
        with pytest.raises(EnoughError):
            hub.run(show=False)
        back = [row["rolled_back_to"] for row in hub.metrics() if "rolled_back_to" in row]
        assert back == [1.0, 1.0]
        assert "version 1" in done[0]
        assert len(done) == 6


NOTEBOOK = """
from echo_hub import Hub, Prompt, draw
import random

def total(a: int, b: int) -> str:
    return str(a + b)

class Sums:
    def prompt(self, split, index):
        def one(attempt):
            chance = random.Random(f"{split} {index} {attempt}")
            a, b = chance.randrange(100, 999), chance.randrange(100, 999)
            return f"{a}+{b}=", total(a, b)
        text, right = draw(split, one)
        return Prompt(text, {"right": right})
    def reward(self, prompt, answer):
        return float(answer.rpartition(">")[2] == prompt.data["right"])
#%%
hub = Hub.local(nodes=1, task=Sums(), settings={"learner": {"groups_per_update": 4}})
seen = []
async for update in hub.train(updates=1, show=True):
    seen.append(update.version)
#%%
seen += [update.version for update in hub.run(updates=1)]
hub.close()
print("made", seen, hub.folder.exists())
"""


@pytest.mark.slow
def test_in_a_notebook(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    cells = [
        nbformat.v4.new_code_cell(textwrap.dedent(cell).strip()) for cell in NOTEBOOK.split("#%%")
    ]
    book = nbformat.v4.new_notebook(cells=cells)
    client.NotebookClient(book, timeout=600, kernel_name="python3").execute()
    html = [
        out["data"]["text/html"]
        for cell in book.cells
        for out in cell.get("outputs", [])
        if "text/html" in out.get("data", {})
    ]
    assert len(html) == 2
    assert all("echo-hub" in one and "rollouts" in one for one in html)
    assert "<script" not in "".join(html)
    assert book.cells[2].outputs[-1]["text"] == "made [1, 2] False\n"
