"""Facts about a run that never change while it lasts: its base model and its description."""

from __future__ import annotations

from pathlib import Path

from echo_hub.config import RunConfig
from echo_hub.tokens import Tokenizer
from echo_p2p.errors import ConfigError
from echo_p2p.wire import RunDescription

LONGEST_PROMPT = 512
"""Prompts over this many tokens are refused when they are made; it bounds a run's context."""


def resolve_base(path: str) -> Path:
    """The folder of `base.path`: a packaged model's name, or a folder with a snapshot."""
    if path == "addmix3":
        from echo_hub.models import addmix3_path

        return addmix3_path()
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"base.path = {path!r} is no folder with a config.json.",
            fix="Name a Hugging Face snapshot folder with safetensors weights, or 'addmix3'.",
        )
    return folder


def run_description(
    config: RunConfig,
    tokenizer: Tokenizer,
    base: bytes,
    *,
    environments: tuple[str, ...],
    created_at: float,
) -> RunDescription:
    """What nodes are told of the run."""
    return RunDescription(
        run_id=config.run.id,
        task=config.shown_tasks,
        base=base,
        group_size=config.sampling.group_size,
        staleness=config.staleness,
        vocab_size=tokenizer.vocab_size,
        context=min(LONGEST_PROMPT + config.sampling.max_new_tokens, tokenizer.context),
        dtype=config.base.dtype,
        created_at=created_at,
        environments=environments,
    )
