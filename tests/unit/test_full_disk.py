"""A disk that takes no more, as a limit on the size of files."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from echo_hub.folders import whole_folder


@contextmanager
def files_of_at_most(most: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_weights_that_do_not_fit_are_an_error_of_the_disk(tmp_path: Path) -> None:
    """safetensors raises an exception of its own, and the learner died of it."""
    with pytest.raises(OSError, match=rf"os error {errno.EFBIG}"), files_of_at_most(1 << 16):  # noqa: SIM117
        with whole_folder(tmp_path / "v000001") as draft:
            save_file({"weight": torch.zeros(1 << 16)}, draft / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
