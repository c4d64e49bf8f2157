"""The exact command that upgrades this installation. Pure but for looking at its own folder.

How it was installed is told by what the installers leave in the environment: pipx writes
`pipx_metadata.json`, uv tools `uv-receipt.toml`, uv's environments `uv = ` in `pyvenv.cfg`. A
source tree (PEP 610's `direct_url.json`, editable) is upgraded by pulling it.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Literal

DISTRIBUTION = "echo-p2p"


def upgrade_command(prefix: Path | None = None, *, extras: str = "", source: str = "") -> str:
    """What to type; the arguments are for tests.

    Args:
        prefix: the environment's folder.
        extras: as "cuda,hub"; found out by nothing, so none unless given.
        source: folder of an editable installation.
    """
    prefix = Path(sys.prefix) if prefix is None else prefix
    name = f'"{DISTRIBUTION}[{extras}]"' if extras else DISTRIBUTION
    made_by = installer(prefix)
    if made_by == "pipx":
        return f"pipx upgrade {DISTRIBUTION}"
    if made_by == "uv tool":
        return f"uv tool upgrade {DISTRIBUTION}"
    source = source or editable_source()
    if source:
        return f"git -C {source} pull && {prefix / 'bin' / 'pip'} install -e {source}"
    if made_by == "uv":
        return f"uv pip install --python {prefix} --upgrade {name}"
    python = "python" if sys.platform == "win32" else "python3"
    if prefix == Path(sys.base_prefix):
        return f"{python} -m pip install --upgrade {name}"
    return f"{prefix / 'bin' / 'python'} -m pip install --upgrade {name}"


def installer(prefix: Path) -> Literal["pipx", "uv tool", "uv", "pip"]:
    """What made an environment."""
    if (prefix / "pipx_metadata.json").is_file():
        return "pipx"
    if (prefix / "uv-receipt.toml").is_file():
        return "uv tool"
    return "uv" if _made_by_uv(prefix) else "pip"


def editable_source() -> str:
    """The folder of an editable installation; empty if it is none."""
    try:
        text = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        return ""
    try:
        origin = json.loads(text or "{}")
        editable = origin.get("dir_info", {}).get("editable", False)
    except (ValueError, AttributeError):
        return ""
    return str(origin["url"]).removeprefix("file://") if editable else ""


def _made_by_uv(prefix: Path) -> bool:
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    return any(line.partition("=")[0].strip() == "uv" for line in lines)
