"""`echo-hub export`: a version of a run as a folder for everybody else's tools.

Promises: the run is only read, and may be served meanwhile; the folder appears whole, and nothing
that is there already is ever overwritten. An adapter is copied as it was published, byte for byte.
A merged model has the weights that the nodes computed with, in the run's dtype, beside the base's
tokenizer; only JSON, safetensors and text are written.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echo_hub.audit.rules import base_digest
from echo_hub.commands.model_card import CardFacts, Contributor, render_card
from echo_hub.commands.status import run_folder
from echo_hub.config import RunConfig, load_config
from echo_hub.folders import let_all_read, whole_folder
from echo_hub.ledger.history import History
from echo_hub.ledger.ledger import read_history
from echo_hub.paths import RunFolder
from echo_hub.run_facts import resolve_base
from echo_p2p import __version__
from echo_p2p.errors import ConfigError
from echo_p2p.identity import peer_id_of

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
_SHOWN = ("run", "base", "sampling", "learner", "publish")


@dataclass(frozen=True)
class Exported:
    """What was written where. `kind` is `adapter` or `model`."""

    run: str
    version: int
    kind: str
    out: Path
    bytes: int

    def as_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "out": str(self.out)}


def export_run(root: Path, out: Path, *, version: int | None, merge: bool) -> Exported:
    """Write a version (None: the newest) to the new or empty folder `out`.

    Args:
        merge: a whole model in place of an adapter.

    Raises:
        ConfigError: there is no such run or version any more, or something is at `out`.
        LedgerError, LearnerError: the run's ledger or the version cannot be read.
    """
    folder = run_folder(root)
    config = load_config(folder.config)
    history = read_history(folder.ledger)
    chosen = _choose(version, _on_disk(folder, history), folder)
    base = resolve_base(config.base.path)
    out = out.absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} is there already.", fix="Name a folder that does not exist yet.")
    whole = merge or config.learner.adapter == "none"
    try:
        with whole_folder(out, replace=False) as draft:
            if merge and config.learner.adapter == "lora":
                _write_merged(config, base, folder.adapter(chosen), draft)
            else:
                _copy(folder.adapter(chosen), draft)
            if whole:
                _copy_tokenizer(base, draft)
            card = _facts(config, base, history, chosen, merged=whole)
            (draft / "README.md").write_text(render_card(card), encoding="utf-8")
            let_all_read(draft)
    except OSError as error:
        raise ConfigError(
            f"cannot write {out}: {(error.strerror or str(error)).lower()}.",
            fix="Name a folder that does not exist yet, where you may write.",
        ) from error
    size = sum(file.stat().st_size for file in out.iterdir())
    return Exported(config.run.id, chosen, "model" if whole else "adapter", out, size)


def _on_disk(folder: RunFolder, history: History) -> list[int]:
    """Versions that the ledger has and that are still here, in order."""
    return [row.version for row in history.updates if folder.adapter(row.version).is_dir()]


def _choose(version: int | None, there: Sequence[int], folder: RunFolder) -> int:
    if not there:
        raise ConfigError(
            f"{folder.checkpoints} holds no version of this run.",
            fix="The first one is made when the run is served.",
        )
    if version is None:
        return there[-1]
    if version not in there:
        raise ConfigError(
            f"version {version} is not in {folder.checkpoints}.",
            fix=f"There are: {', '.join(map(str, there))}. A run keeps the last ones only, "
            "learner.keep_checkpoints of them at least.",
        )
    return version


def _copy(source: Path, draft: Path) -> None:
    for file in source.iterdir():
        shutil.copyfile(file, draft / file.name)


def _copy_tokenizer(base: Path, draft: Path) -> None:
    for name in TOKENIZER_FILES:
        if (base / name).is_file():
            shutil.copyfile(base / name, draft / name)


def _write_merged(config: RunConfig, base: Path, adapter: Path, draft: Path) -> None:
    from echo_hub.audit.reader import Reader
    from echo_hub.learner.policy import Policy

    on_cpu = config.learner.model_copy(update={"device": "cpu"})  # the card may be the run's
    policy = Policy.load(base, on_cpu, dtype=config.base.dtype, seed=config.run.seed)
    with Reader(policy).wearing(adapter):
        policy.causal.save_pretrained(draft)


def _facts(
    config: RunConfig, base: Path, history: History, version: int, *, merged: bool
) -> CardFacts:
    values = config.model_dump(mode="json")
    values["base"].pop("path")  # of this machine
    nodes = sorted(history.nodes, key=lambda node: -node.accepted)
    return CardFacts(
        run_id=config.run.id,
        version=version,
        merged=merged,
        base=base.name,
        base_digest=base_digest(base),
        tasks=[task.name for task in config.all_tasks],
        updates=[row for row in history.updates if row.version <= version],
        evaluations={v: reward for v, reward in history.evaluations.items() if v <= version},
        settings={section: values[section] for section in _SHOWN},
        contributors=[
            Contributor(peer_id_of(node.key), node.accepted) for node in nodes if node.accepted
        ],
        program=f"echo-p2p {__version__}",
    )
