"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A temporary sibling to write into; it becomes `out` when the block ends without error.

    By then everything in it is on disk, readable by all, and the rename is on disk too. What a
    killed attempt left behind is cleared by the next attempt at the same `out`. An `out` that is
    already there is replaced: the caller names a folder twice only to make the same thing again.
    """
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        yield draft
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    for folder, _, files in os.walk(draft):
        for name in files:
            file = Path(folder, name)
            file.chmod(0o644)  # transformers writes safetensors for the owner alone
            _fsync(file)
        _fsync(Path(folder))
    if out.exists():
        shutil.rmtree(out)
    draft.rename(out)
    _fsync(out.parent)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
