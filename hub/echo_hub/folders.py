"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def whole_folder(out: Path, *, replace: bool = True) -> Iterator[Path]:
    """A temporary sibling to write into; it becomes `out` when the block ends without error.

    By then everything in it is on disk, and the rename is on disk too. After an error nothing is
    left, not even a folder around `out` that was not there before. What a killed attempt left
    behind is cleared by the next attempt at the same `out`.

    Raises OSError if it cannot be written, also where that is safetensors' own kind of error.

    Args:
        replace: an `out` that is already there gives way: the caller names a folder twice only to
            make the same thing again. Without it, OSError unless that one is empty.
    """
    draft = out.with_name(f".{out.name}.draft")
    around = [parent for parent in out.parents if not parent.exists()]
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        yield draft
        for folder, _, files in os.walk(draft):
            for name in files:
                _fsync(Path(folder, name))
            _fsync(Path(folder))
        if replace and out.exists():
            shutil.rmtree(out)
        draft.rename(out)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        for parent in around:
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, SafetensorError):  # what it makes of a full disk
            raise OSError(str(error)) from error
        raise
    _fsync(out.parent)


def let_all_read(folder: Path) -> None:
    """What is published is no secret; transformers writes safetensors for the owner alone."""
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o644)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
