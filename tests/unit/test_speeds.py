"""`echo-node bench`: what it measures, what it keeps, and when it measures again."""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest
import trio
from typer.testing import CliRunner

from echo_node.cli import app
from echo_node.doctor.speed import judge
from echo_node.engines import trial
from echo_node.engines.remote import open_engine
from echo_node.engines.whole import read_version
from echo_node.fit import Need, Plan
from echo_node.hardware.base import GIB, Accelerator, Cpu, Machine
from echo_node.speeds import MOST_KEPT, Speed, Subject, find, keep, read_speeds, subject_of
from echo_p2p.errors import EngineError, ProcessError

ADDMIX3 = Path(__file__).parents[2] / "hub/echo_hub/models/addmix3"
MACHINE = Machine(
    system="Linux",
    architecture="x86_64",
    cpu=Cpu(name="a CPU", cores=2, vectors=("avx2", "bf16")),
    ram=8 * GIB,
    ram_free=6 * GIB,
    accelerators=(
        Accelerator(kind="cuda", name="a card", memory=GIB, free=GIB, driver="580.1"),
        Accelerator(kind="metal", name="Apple M99", memory=GIB, free=GIB),
    ),
)
NONE = Need(fixed=0, weights=0, cache=0, logits=0, activations=0)
PLAN = Plan(
    engine="torch", device="cpu", place="the CPU", dtype="float32", context=64, max_sequences=4,
    memory=GIB, memory_share=1.0, need=NONE,
)  # fmt: skip


def subject(plan: Plan = PLAN, **changes: object) -> Subject:
    about = subject_of(plan, MACHINE, model="m", release="2", threads=1, lengths=(8, 16))
    return msgspec.structs.replace(about, **changes)


def test_a_result_holds_for_one_model_engine_place_and_driver(tmp_path: Path) -> None:
    file = tmp_path / "here" / "speeds.json"
    assert read_speeds(file) == []
    first = Speed(subject=subject(), tokens_s=10.0, measured_at=1.0)
    keep(file, first)
    assert find(read_speeds(file), subject()) == first
    for change in ({"model": "n"}, {"engine": "vllm"}, {"release": "3"}, {"driver": "581"},
                   {"place": "b"}, {"dtype": "bfloat16"}, {"sequences": 5}, {"new_tokens": 17},
                   {"threads": 2}, {"prompt": 9}):  # fmt: skip
        assert find(read_speeds(file), subject(**change)) is None
    keep(file, msgspec.structs.replace(first, tokens_s=20.0))
    (only,) = read_speeds(file)
    assert only.tokens_s == 20.0
    for number in range(MOST_KEPT + 3):
        keep(file, msgspec.structs.replace(first, subject=subject(model=str(number))))
    assert len(read_speeds(file)) == MOST_KEPT
    for spoiled in (b"", b"{}", b'[{"tokens_s": 1}]', b"\xff"):
        file.write_bytes(spoiled)
        assert read_speeds(file) == []


def test_the_driver_is_that_of_what_computes() -> None:
    assert (subject().place, subject().driver) == ("a CPU", "avx2 bf16")
    card = msgspec.structs.replace(PLAN, device="cuda:0", place="a card")
    assert subject(card).driver == "580.1"
    two = msgspec.structs.replace(PLAN, device="cuda:0,1", place="2 cards of a card", cards=2)
    assert subject(two).driver == "580.1"
    unknown = msgspec.structs.replace(PLAN, device="metal", place="Apple M99")  # of the future
    assert (subject(unknown).place, subject(unknown).driver) == ("Apple M99", "")


def test_the_doctor_says_what_still_holds() -> None:
    (note,) = judge([], MACHINE)
    assert note.severity == "note"
    assert "echo-node bench" in note.said
    now = Speed(subject=subject(), tokens_s=1234.0, measured_at=1.0)
    old = Speed(subject=subject(driver="avx"), tokens_s=5.0, measured_at=2.0)
    (found,) = judge([now, old], MACHINE)
    assert found.severity == "ok"
    assert "1,234 tokens/s" in found.said


def test_the_neutral_adapter_is_one_that_engines_take(tmp_path: Path) -> None:
    folder = trial.write_neutral_adapter(ADDMIX3, tmp_path / "adapter")
    tensors = read_version(folder).tensors
    assert len(tensors) == 2 * 7 * 3  # two for each of seven linear layers of three blocks
    assert not any(bool(one.any()) for name, one in tensors.items() if ".lora_B." in name)
    with pytest.raises(EngineError, match="no linear layers"):
        trial.write_neutral_adapter(tmp_path / "adapter", tmp_path / "other")


def test_bench_measures_once_and_keeps_it(tmp_path: Path) -> None:
    """The real command with a real engine process."""
    command = ["bench", str(ADDMIX3), "--max-sequences", "4", "--new-tokens", "8", "--json",
               "--data-dir", str(tmp_path)]  # fmt: skip
    first = CliRunner().invoke(app, command)
    assert first.exit_code == 0, first.output
    result = json.loads(first.stdout)
    assert math.isfinite(result["tokens_s"])
    assert result["tokens_s"] > 0
    assert result["subject"]["sequences"] == 4
    second = CliRunner().invoke(app, command)
    assert json.loads(second.stdout) == result  # to the time at which it was measured
    refused = CliRunner().invoke(app, [*command[:1], "--data-dir", str(tmp_path)])
    assert refused.exit_code == 2


@pytest.mark.skipif(find_spec("mlx_lm") is not None, reason="MLX is here, and may work")
def test_an_engine_that_cannot_work_is_an_error_with_words(tmp_path: Path) -> None:
    async def attempt(engine: str) -> None:
        async with open_engine(
            threads=1, max_sequences=2, log_path=tmp_path / "log", engine=engine
        ) as remote:
            await trial.tokens_per_second(remote, ADDMIX3, dtype="float32", prompt=4, new_tokens=4)

    with pytest.raises((EngineError, ProcessError), match=r"(?i)mlx"):
        trio.run(attempt, "mlx")
