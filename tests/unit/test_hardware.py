"""What a machine has. NVIDIA's, Apple's and AMD's devices are faked at the edge of the system:
their library, their commands, their files. The rest is this machine."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from echo_node.hardware import amd, apple, nvidia
from echo_node.hardware.base import GIB, size
from echo_node.hardware.cpu import look_at_cpu, look_at_memory
from echo_node.hardware.look import look


class Nvml:
    """NVML as nvidia-ml-py shows it, with an RTX 4090 and an RTX 3060."""

    NVMLError = pynvml.NVMLError
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    cards = (("NVIDIA GeForce RTX 4090", 24, (8, 9)), ("NVIDIA GeForce RTX 3060", 12, (8, 6)))

    def __init__(self, **fails: int) -> None:
        self.fails = fails
        self.open = 0

    def _may(self, name: str) -> None:
        if name in self.fails:
            raise pynvml.NVMLError(self.fails[name])

    def nvmlInit(self) -> None:
        self._may("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._may("driver")
        return "580.65.06"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        self._may(f"card{index}")
        return index

    def nvmlDeviceGetName(self, handle: int) -> bytes:
        return self.cards[handle][0].encode()  # older libraries give bytes

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self.cards[handle][2]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        self._may("memory")
        total = self.cards[handle][1] * GIB
        return SimpleNamespace(total=total, free=total - GIB, used=GIB)


def display(pci: Path, vendor: str = "0x10de") -> Path:
    (pci / "0000:01:00.0").mkdir(parents=True)
    (pci / "0000:01:00.0" / "vendor").write_text(f"{vendor}\n")
    (pci / "0000:01:00.0" / "class").write_text("0x030000\n")
    return pci


def test_nvidia_cards_are_listed(tmp_path: Path) -> None:
    nvml = Nvml()
    first, second = nvidia.look(nvml, environment={}, pci=tmp_path).accelerators
    assert (first.name, first.driver, first.capability) == (
        "NVIDIA GeForce RTX 4090",
        "580.65.06",
        "8.9",
    )
    assert (first.memory, first.free, first.unified) == (24 * GIB, 23 * GIB, False)
    assert (second.memory, second.capability) == (12 * GIB, "8.6")
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("listed", "seen"), [("", 0), ("-1", 0), ("1", 1), ("0,1", 2), ("GPU-abc", 2)]
)
def test_hidden_cards_are_not_listed(listed: str, seen: int, tmp_path: Path) -> None:
    found = nvidia.look(Nvml(), environment={"CUDA_VISIBLE_DEVICES": listed}, pci=tmp_path)
    assert len(found.accelerators) == seen


def test_a_chip_without_memory_of_its_own_shares_the_machines(tmp_path: Path) -> None:
    nvml = Nvml(memory=pynvml.NVML_ERROR_NOT_SUPPORTED)
    card = nvidia.look(nvml, environment={}, pci=tmp_path).accelerators[0]
    assert card.unified
    assert card.memory == psutil.virtual_memory().total


def test_a_lost_card_is_said_and_hides_no_other(tmp_path: Path) -> None:
    found = nvidia.look(Nvml(card0=pynvml.NVML_ERROR_GPU_IS_LOST), environment={}, pci=tmp_path)
    assert [card.memory for card in found.accelerators] == [12 * GIB]
    assert "card 0 does not answer" in found.problems[0]
    assert "Restart the computer" in found.problems[0]


@pytest.mark.parametrize(
    ("nvml", "card", "problem"),
    [
        (Nvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), False, None),
        (Nvml(init=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), True, "Install NVIDIA's driver"),
        (Nvml(init=pynvml.NVML_ERROR_DRIVER_NOT_LOADED), True, "its driver does not work"),
        (Nvml(init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH), False, "the old one is still"),
        (Nvml(driver=pynvml.NVML_ERROR_UNKNOWN), True, "does not answer"),
    ],
)
def test_what_is_wrong_with_a_driver_is_said(
    nvml: Nvml, card: bool, problem: str | None, tmp_path: Path
) -> None:
    found = nvidia.look(nvml, environment={}, pci=display(tmp_path) if card else tmp_path)
    assert found.accelerators == ()
    assert bool(found.problems) == (problem is not None)
    assert problem is None or problem in found.problems[0]
    assert nvml.open == 0


def mac(**facts: str) -> Callable[[Sequence[str]], str]:
    """The commands of a Mac."""
    answers = {
        "hw.optional.arm64": "1",
        "hw.memsize": str(16 * GIB),
        "iogpu.wired_limit_mb": "0",
        "machdep.cpu.brand_string": "Apple M2",
        "SPDisplaysDataType": json.dumps(
            {
                "SPDisplaysDataType": [
                    {
                        "sppci_cores": "10",
                        "sppci_model": "Apple M2",
                        "spdisplays_mtlgpufamilysupport": "spdisplays_metal3",
                    }
                ]
            }
        ),
        **facts,
    }
    return lambda command: next((answers[word] for word in command if word in answers), "")


def test_an_apple_chip_is_described() -> None:
    (chip,) = apple.look(mac(), system="darwin", ram_free=lambda: 8 * GIB).accelerators
    assert (chip.name, chip.capability, chip.driver) == ("Apple M2", "10 GPU cores", "metal3")
    assert (chip.memory, chip.free, chip.unified) == (16 * GIB * 2 // 3, 8 * GIB, True)


def test_a_chip_nobody_has_heard_of_works_too() -> None:
    strange = mac(
        **{"machdep.cpu.brand_string": "Apple Q9 Ultimate", "SPDisplaysDataType": "not JSON"}
    )
    (chip,) = apple.look(strange, system="darwin", ram_free=lambda: GIB).accelerators
    assert (chip.name, chip.capability) == ("Apple Q9 Ultimate", "")


def test_what_the_gpu_may_use_of_a_macs_memory() -> None:
    assert apple.gpu_share(128 * GIB, 0) == 96 * GIB
    assert apple.gpu_share(16 * GIB, 8192) == 8 * GIB
    assert apple.gpu_share(16 * GIB, 1 << 20) == 16 * GIB


def test_no_apple_chip_elsewhere() -> None:
    assert apple.look(mac(), system="linux").accelerators == ()
    assert apple.look(mac(**{"hw.optional.arm64": "0"}), system="darwin").accelerators == ()
    assert apple.run(["/nonexistent/sysctl"]) == ""
    assert apple.run(["false"]) == ""


def amd_files(root: Path, *, compute: bool = True) -> Path:
    pci = root / "devices/0000:03:00.0"
    pci.mkdir(parents=True)
    for name, text in {
        "vendor": "0x1002",
        "device": "0x744c",
        "mem_info_vram_total": str(24 * GIB),
        "mem_info_vram_used": str(2 * GIB),
    }.items():
        (pci / name).write_text(f"{text}\n")
    (root / "class/drm/card1").mkdir(parents=True)
    (root / "class/drm/card1-DP-1").mkdir()
    (root / "class/drm/card1/device").symlink_to(pci)
    if compute:
        node = root / "class/kfd/kfd/topology/nodes/1"
        node.mkdir(parents=True)
        (node / "properties").write_text("gfx_target_version 110000\nlocation_id 768\n")
    return root


def test_an_amd_card_is_read_from_its_files(tmp_path: Path) -> None:
    (card,) = amd.look(amd_files(tmp_path)).accelerators
    assert (card.kind, card.name, card.capability) == ("rocm", "AMD 0x744c", "gfx1100")
    assert (card.memory, card.free) == (24 * GIB, 22 * GIB)


def test_an_amd_card_without_its_compute_driver_is_said(tmp_path: Path) -> None:
    found = amd.look(amd_files(tmp_path, compute=False))
    assert found.accelerators == ()
    assert "compute driver" in found.problems[0]


@pytest.mark.parametrize(
    ("version", "name"), [(90010, "gfx90a"), (110000, "gfx1100"), (120001, "gfx1201")]
)
def test_architectures_are_named_as_llvm_does(version: int, name: str) -> None:
    assert amd.architecture_of(version) == name


def test_vector_extensions(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Xeon\nflags\t\t: sse avx2 avx512f avx512_bf16 amx_bf16\n")
    cpu = look_at_cpu(cpuinfo=cpuinfo, system="linux")
    assert (cpu.name, cpu.vectors) == ("Xeon", ("avx2", "avx512", "bf16"))
    cpuinfo.write_text("Features\t: fp asimd bf16 sve\n")
    assert look_at_cpu(cpuinfo=cpuinfo, system="linux").vectors == ("neon", "bf16", "sve")
    assert look_at_cpu(cpuinfo=tmp_path / "none", system="linux").vectors == ()
    arm = mac(**{"hw.optional.neon": "1", "hw.optional.arm.FEAT_BF16": "1"})
    assert look_at_cpu(system="darwin", run=arm).vectors == ("neon", "bf16")


def test_a_containers_limit_is_its_memory(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/user/app\n")
    group = tmp_path / "user/app"
    group.mkdir(parents=True)

    def memory() -> tuple[int, int]:
        return look_at_memory(cgroups=tmp_path, own=own, machine=lambda: (16 * GIB, 10 * GIB))

    assert memory() == (16 * GIB, 10 * GIB)
    (group / "memory.max").write_text("max\n")
    assert memory() == (16 * GIB, 10 * GIB)
    (group / "memory.max").write_text(f"{4 * GIB}\n")
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    assert memory() == (4 * GIB, GIB)
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert memory() == (4 * GIB, 2 * GIB)


def test_this_machine() -> None:
    machine = look()
    assert 0 < machine.ram_free <= machine.ram <= psutil.virtual_memory().total
    assert machine.cpu.cores == len(os.sched_getaffinity(0))
    assert re.match(r"\w", machine.cpu.name)


def test_sizes_are_said_as_memory_is_sold() -> None:
    assert [size(n) for n in (512, 24 * GIB, 300 << 20, 1536)] == [
        "512 B",
        "24.0 GiB",
        "300 MiB",
        "1.5 KiB",
    ]
