"""An artifact far larger than the memory it may take, through a hub and a node.

What is measured is VmHWM of /proc/self/status, the most memory that a process ever had resident,
less what it was before the transfer; pages that the kernel caches of files are not in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3
from swarm_lab import MIB, Lab, Published

GIB = 1 << 30
RESIDENT_KIB = 256 * 1024


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.clear()
    try:
        yield made
    finally:
        made.close()


def sparse_model(folder: Path, size: int) -> Path:
    """Shards whose chunks all differ, and which take little disk: a random page in each MiB."""
    rng = random.Random(size)
    folder.mkdir()
    for number in range(4):
        with (folder / f"model-{number}.safetensors").open("wb") as file:
            file.truncate(size // 4)
            for offset in range(0, size // 4, MIB):
                file.seek(offset + rng.randrange(0, MIB - 4096))
                file.write(rng.randbytes(4096))
    return folder


def digests(folder: Path) -> dict[str, bytes]:
    return {path.name: blake3().update_mmap(path).digest() for path in folder.iterdir()}


def disk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pass_through(lab: Lab, tmp_path: Path, size: int) -> None:
    """Fetch `size` bytes into a store that has room for that and little else."""
    earlier = lab.adapter(64 * MIB)
    cap = size + 32 * MIB
    node = lab.node("a", cap)
    node.next("ready")
    node.order(fetch=earlier.envelope)
    earlier.check(node)
    source = sparse_model(tmp_path / "model", size)
    published: Published = lab.publish(source, kind="base", version=9, chunk=MIB)
    assert published.size == size
    before = node.usage()["peak_kib"], lab.hub.usage()["peak_kib"]
    node.order(fetch=published.envelope)
    complete = Path(node.next("complete")["complete"])
    grew = [node.usage()["peak_kib"] - before[0], lab.hub.usage()["peak_kib"] - before[1]]
    print(f"{size} bytes: KiB more than before, node and hub: {grew}")  # shown with -s
    assert max(grew) < RESIDENT_KIB
    assert digests(complete) == digests(source)
    store = complete.parents[2]
    assert disk_bytes(store) < cap + MIB  # envelopes and the lock are not counted
    assert len(list((store / "complete").iterdir())) == 1  # the earlier one made room


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_four_gigabytes_go_through_a_node_that_has_256_mb_for_it(lab: Lab, tmp_path: Path) -> None:
    pass_through(lab, tmp_path, 4 * GIB)
