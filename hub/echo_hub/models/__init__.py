"""Base policies: the packaged `addmix3`, the script that makes it, and a converter for SmolLM2."""

from __future__ import annotations

from pathlib import Path


def addmix3_path() -> Path:
    """The packaged snapshot of `addmix3` (what `make_addmix3` makes)."""
    return Path(__file__).parent / "addmix3"
