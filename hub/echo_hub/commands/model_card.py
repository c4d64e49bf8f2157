"""The model card (README.md) of an exported version: what it is, how it came about, whose work it
is. Pure.

Whatever comes from a node, a snapshot or run.toml is written so that Markdown and HTML see letters
in it and no markup.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echo_hub.ledger.history import UpdateRow

MOST_ROWS = 25
"""Rows of the reward table; of a longer run, as many updates evenly spaced."""
_MOST_CHARACTERS = 200
_MARKUP = frozenset("\\`*_{}[]()<>#+.!|~&$^=:@\"'")  # "." and ":" and "@" would make links


@dataclass(frozen=True)
class Contributor:
    """A node: its peer id, and its rollouts that were accepted."""

    peer_id: str
    rollouts: int


@dataclass(frozen=True)
class CardFacts:
    """What a card says. `version` is the exported one; `updates` are those that led to it;
    `settings` is run.toml by section; `merged`: a whole model, no adapter."""

    run_id: str
    version: int
    merged: bool
    base: str
    base_digest: str
    tasks: Sequence[str]
    updates: Sequence[UpdateRow]
    evaluations: Mapping[int, float]
    settings: Mapping[str, Mapping[str, Any]]
    contributors: Sequence[Contributor]
    program: str


def plain(text: str) -> str:
    """A string in which Markdown and HTML see nothing but letters, on one line and not endless."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)[:_MOST_CHARACTERS]
    return "".join(f"&#{ord(letter)};" if letter in _MARKUP else letter for letter in shown)


def render_card(facts: CardFacts) -> str:
    """The whole README.md."""
    kind = "model" if facts.merged else "LoRA adapter"
    trained = [row for row in facts.updates if row.version > 0]
    dates = (
        f"trained from {_day(trained[0].at)} to {_day(trained[-1].at)} (UTC)"
        if trained
        else "not trained yet"
    )
    return "\n".join(
        [
            _front_matter(facts),
            f"# {plain(facts.run_id)}, version {facts.version}",
            "",
            f"A {kind}, {dates} by reinforcement learning with {plain(facts.program)}: a hub "
            f"trained it on rollouts that {_count(len(facts.contributors), 'node')} sampled and "
            "signed.",
            "",
            f"- base model: {plain(facts.base)} (BLAKE3 of configuration and weights "
            f"`{facts.base_digest}`)",
            f"- task: {', '.join(map(plain, facts.tasks))}",
            f"- updates: {len(trained)}",
            "",
            *_loading(facts),
            "## Reward",
            "",
            *_rewards(trained, facts.evaluations),
            "",
            "## Settings",
            "",
            *_settings(facts.settings),
            "",
            "## Contributors",
            "",
            *_contributors(facts.contributors),
            "",
        ]
    )


def _front_matter(facts: CardFacts) -> str:
    """YAML for model hubs; every string as JSON, which YAML reads the same."""
    library = "transformers" if facts.merged else "peft"
    fields = {
        "library_name": library,
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "grpo", "echo-p2p"],
        "base_model": facts.base,
    }
    lines = [f"{name}: {json.dumps(value)}" for name, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _loading(facts: CardFacts) -> list[str]:
    if facts.merged:
        code = [
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "",
            'model = AutoModelForCausalLM.from_pretrained("THIS FOLDER", dtype="auto")',
            'tokenizer = AutoTokenizer.from_pretrained("THIS FOLDER")',
        ]
    else:
        code = [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM",
            "",
            'base = AutoModelForCausalLM.from_pretrained("THE BASE MODEL", dtype="auto")',
            'model = PeftModel.from_pretrained(base, "THIS FOLDER")',
        ]
    return ["```python", *code, "```", ""]


def _rewards(trained: Sequence[UpdateRow], evaluations: Mapping[int, float]) -> list[str]:
    shown = _evenly(trained, MOST_ROWS)
    versions = sorted({row.version for row in shown} | evaluations.keys())
    if not versions:
        return ["No update yet."]
    rewards = {row.version: row.reward for row in shown}
    return [
        "| version | mean reward of its rollouts | held-out reward |",
        "| ---: | ---: | ---: |",
        *(
            f"| {version} | {_number(rewards.get(version))} | {_number(evaluations.get(version))} |"
            for version in versions
        ),
    ]


def _evenly(rows: Sequence[UpdateRow], most: int) -> list[UpdateRow]:
    """At most so many of them, the first and the last among these."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [
        "| setting | value |",
        "| --- | --- |",
        *(
            f"| `{section}.{name}` | {_value(value)} |"
            for section, values in settings.items()
            for name, value in values.items()
        ),
    ]


def _value(value: Any) -> str:
    return repr(value) if isinstance(value, int | float) else plain(json.dumps(value))


def _contributors(contributors: Sequence[Contributor]) -> list[str]:
    if not contributors:
        return ["Nobody yet."]
    return [
        "| node | accepted rollouts |",
        "| --- | ---: |",
        *(f"| {plain(one.peer_id)} | {one.rollouts} |" for one in contributors),
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))
