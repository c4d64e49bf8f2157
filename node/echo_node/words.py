"""Words of others, fit for a terminal."""

from __future__ import annotations

import re

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Those of terminals, and those that turn the direction of writing."""


def clean(text: str) -> str:
    """Without control characters: what comes over the network, or names a program, is no command
    to the terminal."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)
