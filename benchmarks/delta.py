"""What deltas save, on versions of real training runs, per learning rate.

Each run is GRPO as the hub does it, one update after another, every version published. A delta goes
from one version to the next, the first apart (it starts from an adapter whose B matrices are zero).
Beside it: zstd of the snapshot alone; zstd of its XOR with the version before; and the same with
the bytes grouped by significance, which differs from ours by XOR in place of differences.

- addmix3: the demo's adapter, float32.
- smollm2: the adapter of SmolLM2-135M, float32.
- smollm2-merged: that adapter merged into the bfloat16 weights of the whole model, as a run with
  full-weight snapshots would publish them: few of a weight's bits change, and most weights do not.

Speeds are in MB of the snapshot per second of CPU time, so that they hold on a busy machine: `made`
is the hub's, from two stored artifacts to the delta's file; `applied` is what a node computes more
than for the snapshot, with all checks of the store: to keep the delta, rebuild the snapshot, read
it back, less to keep the snapshot and read it back. "20 MB/s up" is the time from a finished update
until one node has the version, by snapshot and by delta, at that uplink, computed from these.

    python benchmarks/delta.py [--models addmix3 smollm2 smollm2-merged] [--versions 8]
                               [--smollm2 SNAPSHOT] [--keep FOLDER] [--json]
    python benchmarks/delta.py --large 4      peak memory with a snapshot of so many GB

`--keep` keeps the versions, and uses those that are there already.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from echo_p2p.artifact import rebuild as rebuild_module
from echo_p2p.artifact.delta import Segment, encode
from echo_p2p.artifact.manifest import DELTA_FILE, Artifact, Kind, build_manifest
from echo_p2p.artifact.rebuild import StoredBytes, make_delta, rebuild
from echo_p2p.artifact.segments import plan
from echo_p2p.artifact.store import Store
from echo_p2p.identity import Identity
from echo_p2p.wire import DeltaOf

HUB = Identity.create()
RATES = {
    "addmix3": (1e-3, 5e-4, 1e-4, 1e-5),
    "smollm2": (1e-3, 3e-4, 3e-5, 3e-6),
    "smollm2-merged": (1e-3, 3e-4, 3e-5, 3e-6),
}
UPLINKS = (5e6, 20e6, 100e6)
CHUNK = 1 << 20


def describe(folder: Path, kind: Kind, version: int, delta: DeltaOf | None = None) -> Artifact:
    manifest = build_manifest(
        folder, run_id="bench", kind=kind, version=version, chunk_bytes=CHUNK, created_at=0.0,
        delta=delta,
    )  # fmt: skip
    return Artifact.sign(HUB, manifest)


# --- versions -------------------------------------------------------------------------------------


def trained(model: str, rate: float, count: int, root: Path, base: Path | None) -> list[Path]:
    """Adapter folders of versions 1 to `count` of a run."""
    from audit_world import World

    from echo_hub.commands.presets import preset
    from echo_hub.models.smollm2 import make_smollm2
    from echo_hub.run_facts import resolve_base

    folder = root / model / f"{rate:g}"
    if not (folder / f"v{count}").exists():
        shutil.rmtree(folder, ignore_errors=True)
        if model == "addmix3":
            path, groups = resolve_base("addmix3"), 32
        else:
            path, groups = base or root / "base", 4
            if not path.exists():
                make_smollm2(path)
        changed = {"learner": {"learning_rate": rate}, "base": {"path": str(path)}}
        config = preset(model, run_id="bench", overrides=changed)  # type: ignore[arg-type]
        World(model, config, path, folder).train(count, groups)
    return [folder / f"v{version}" / "adapter" for version in range(1, count + 1)]


def merged(adapter: Path, base: Path, out: Path) -> Path:
    """The base's weights with an adapter merged in, in the base's own precision."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(base / "model.safetensors")
    lora = load_file(adapter / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    for name in [name for name in lora if name.endswith("lora_A.weight")]:
        a, b = lora[name].double(), lora[name.replace("lora_A", "lora_B")].double()
        key = name.removeprefix("base_model.model.").replace(".lora_A.weight", ".weight")
        weights[key] = (weights[key].double() + scale * (b @ a)).to(torch.bfloat16)
    out.mkdir()
    save_file(weights, out / "model.safetensors")
    return out


def versions(
    model: str, rate: float, count: int, root: Path, base: Path | None, scratch: Path
) -> Iterator[Path]:
    folders = trained(model.removesuffix("-merged"), rate, count, root, base)
    for number, folder in enumerate(folders):
        if model.endswith("-merged"):
            yield merged(folder, base or root / "base", scratch / f"merged-{number}")
        else:
            yield folder


# --- measuring ------------------------------------------------------------------------------------


@dataclass
class Measured:
    """One delta: sizes as shares of the snapshot, speeds in bytes of the snapshot a second."""

    size: int
    unchanged: float
    zstd: float
    xor: float
    xor_planes: float
    ours: float
    encode: float
    decode: float

    def seconds(self, uplink: float, *, delta: bool) -> float:
        """From update to node at this uplink."""
        if not delta:
            return self.size / uplink
        return self.size * (1 / self.encode + self.ours / uplink + 1 / self.decode)


def alternatives(parent: StoredBytes, target: StoredBytes) -> tuple[float, float, float, float]:
    size = target.artifact.layout.total_bytes
    new, old = target.at(0, size), parent.at(0, size)
    segments = list(plan(target.artifact.manifest.files, target.at,
                         parent.artifact.manifest.files, parent.at))  # fmt: skip
    width = max(segments, key=lambda segment: segment.length).width
    cut = size - size % width
    words = np.frombuffer(new[:cut], f"<u{width}") == np.frombuffer(old[:cut], f"<u{width}")
    difference = np.frombuffer(new, np.uint8) ^ np.frombuffer(old, np.uint8)
    level3 = zstandard.ZstdCompressor(level=3)
    alone = [Segment(segment.length, segment.width, None) for segment in segments]
    flat = difference.tobytes()
    grouped = encode(alone, lambda start, length: flat[start : start + length], parent.at)
    return (
        float(words.mean()),
        len(level3.compress(new)) / size,
        len(level3.compress(flat)) / size,
        sum(map(len, grouped)) / size,
    )


def measure(folders: Iterator[Path], scratch: Path) -> list[Measured]:
    """Each delta from one folder to the next."""
    found: list[Measured] = []
    before: Artifact | None = None
    with (
        Store(scratch / "hub", cap_bytes=None) as hub,
        Store(scratch / "node", cap_bytes=None) as node,
    ):
        for version, folder in enumerate(folders, 1):
            artifact = describe(folder, "adapter", version)
            hub.add(artifact, folder)
            if before is None:
                node.add(artifact, folder)
            else:
                found.append(one_delta(hub, node, before, artifact, scratch / f"d{version}"))
                hub.remove(before.id)
                node.remove(before.id)
            before = artifact
            if folder.is_relative_to(scratch):
                shutil.rmtree(folder)
    return found


def one_delta(hub: Store, node: Store, parent: Artifact, target: Artifact, out: Path) -> Measured:
    size = target.layout.total_bytes
    out.mkdir()
    began = time.process_time()
    made = make_delta(hub, parent, target, out / DELTA_FILE)
    encoding = time.process_time() - began
    assert made is not None
    joins = DeltaOf(parent=parent.id, target=target.id)
    delta = describe(out, "delta", target.manifest.version, joins)
    began = time.process_time()
    node.add(delta, out)
    for _ in rebuild(node, delta, target):
        pass
    by_delta = time.process_time() - began
    node.remove(delta.id)
    node.remove(target.id)
    source = hub.path(target.id)
    assert source is not None
    began = time.process_time()
    node.add(target, source)
    decoding = max(1e-4, by_delta - (time.process_time() - began))
    shutil.rmtree(out)
    beside = alternatives(StoredBytes(hub, parent), StoredBytes(hub, target))
    return Measured(size, *beside, made / size, size / encoding, size / decoding)


def show(model: str, rows: dict[float, list[Measured]]) -> None:
    size = next(iter(rows.values()))[0].size
    print(f"\n{model}, {size / 1e6:.1f} MB")
    uplinks = [f"{uplink / 1e6:.0f} MB/s up" for uplink in UPLINKS]
    titles = ["learning rate", "words unchanged", "zstd", "XOR, zstd", "XOR by planes", "ours",
              "made", "applied", *uplinks]  # fmt: skip
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for rate, found in rows.items():
        mean = {
            name: statistics.mean(getattr(one, name) for one in found)
            for name in ("unchanged", "zstd", "xor", "xor_planes", "ours")
        }
        speeds = [
            statistics.median(getattr(one, name) for one in found) for name in ("encode", "decode")
        ]
        times = [
            [
                statistics.median(one.seconds(u, delta=delta) for one in found)
                for delta in (False, True)
            ]
            for u in UPLINKS
        ]
        cells = [f"{rate:g}", f"{mean.pop('unchanged'):.0%}"]
        cells += [f"{value:.3f}" for value in mean.values()]
        cells += [f"{speed / 1e6:.0f}" for speed in speeds]
        cells += [f"{whole:.3g} -> {delta:.3g} s" for whole, delta in times]
        print("| " + " | ".join(cells) + " |", flush=True)


# --- a large one ----------------------------------------------------------------------------------


def write_large(folder: Path, size: int, seed: int) -> None:
    """Random words in shards of 1 GB; another seed changes one in fifty of them by a step."""
    folder.mkdir()
    words = 25_000_000
    for shard in range(max(1, size // (20 * 2 * words))):
        header = {"w": {"dtype": "BF16", "shape": [20 * words], "data_offsets": [0, 40 * words]}}
        text = json.dumps(header).encode()
        with (folder / f"model-{shard:05}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for part in range(20):
                rng = np.random.default_rng([shard, part])
                values = rng.integers(0, 2**16, words, dtype=np.uint16)
                if seed:
                    chance = np.random.default_rng([seed, shard, part])
                    values += chance.random(words, dtype=np.float32) < 0.02
                file.write(values.data)


def high_water() -> int:
    """Peak resident bytes of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def _child(root: str, step: str, pipe: Any) -> None:
    folder = Path(root)
    with Store(folder / "store", cap_bytes=None) as store:
        by_kind = {(a.manifest.kind, a.manifest.version): a for a in store.complete()}
        began = time.perf_counter()
        before = high_water()
        if step == "make":
            parent, target = by_kind["adapter", 0], by_kind["adapter", 1]
            made = make_delta(store, parent, target, folder / "out" / DELTA_FILE)
        else:
            manifests = [Artifact.open((folder / "target").read_bytes(), None)]
            for _ in rebuild(store, by_kind["delta", 1], manifests[0]):
                pass
            made = manifests[0].layout.total_bytes
        pipe.send((made, time.perf_counter() - began, before, high_water()))


def large(gigabytes: float, root: Path) -> None:
    """Peak memory of making and applying a delta, each in a process of its own."""
    size = int(gigabytes * 1e9)
    artifacts = []
    with Store(root / "store", cap_bytes=None) as store:
        for version in (0, 1):
            folder = root / f"v{version}"
            write_large(folder, size, version)
            artifacts.append(describe(folder, "adapter", version))
            store.add(artifacts[-1], folder)
            shutil.rmtree(folder)
    (root / "out").mkdir()
    (root / "target").write_bytes(artifacts[1].envelope)
    for step in ("make", "apply"):
        ours, theirs = multiprocessing.Pipe()
        child = multiprocessing.get_context("spawn").Process(
            target=_child, args=(str(root), step, theirs)
        )
        child.start()
        made, seconds, before, peak = ours.recv()
        child.join()
        size = artifacts[1].layout.total_bytes
        print(
            f"{step}: {made / 1e9:.2f} GB in {seconds:.0f} s, {size / 1e6 / seconds:.0f} MB of the "
            f"snapshot a second; resident before {before / 1e6:.0f}, at most {peak / 1e6:.0f} MB",
            flush=True,
        )
        if step == "make":
            with Store(root / "store", cap_bytes=None) as store:
                joins = DeltaOf(parent=artifacts[0].id, target=artifacts[1].id)
                store.add(describe(root / "out", "delta", 1, joins), root / "out")
                store.remove(artifacts[1].id)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=list(RATES), choices=list(RATES))
    parser.add_argument("--versions", type=int, default=8, help="of each run on addmix3")
    parser.add_argument("--smollm2-versions", type=int, default=4)
    parser.add_argument("--smollm2", type=Path, help="its snapshot folder; made if not given")
    parser.add_argument("--keep", type=Path, help="folder of the versions")
    parser.add_argument("--large", type=float, metavar="GB")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rebuild_module.MOST_OF_SNAPSHOT = 2.0  # measured, however large
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        if options.large:
            large(options.large, scratch)
            return
        for model in options.models:
            rows = {}
            count = options.versions if model == "addmix3" else options.smollm2_versions
            for rate in RATES[model]:
                place = scratch / model / f"{rate:g}"
                place.mkdir(parents=True)
                root = options.keep or scratch / "runs"
                folders = versions(model, rate, count, root, options.smollm2, place)
                rows[rate] = measure(folders, place)
                print(f"{model}, learning rate {rate:g}: done", file=sys.stderr)
                shutil.rmtree(place)
            results[model] = {f"{rate:g}": [vars(one) for one in rows[rate]] for rate in rows}
            if not options.json:
                show(model, rows)
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
