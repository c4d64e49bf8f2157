"""Cards, chips and CPU: what there is, whether its driver works, and whether an engine uses it."""

from __future__ import annotations

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.fit import Software
from echo_node.hardware.base import Accelerator, Machine, size

NAME = "accelerator"

_INSTALL = {
    "cuda": 'Install the engine for NVIDIA cards: pipx install --force "echo-p2p[cuda]"',
    "metal": 'Install the engine for Macs: pipx install --force "echo-p2p[mac]"',
    "rocm": "Install PyTorch for ROCm in this environment: pytorch.org/get-started has the line.",
}


def judge(machine: Machine, software: Software) -> list[Finding]:
    cpu = machine.cpu
    vectors = f", {' '.join(cpu.vectors)}" if cpu.vectors else ""
    found = [
        Finding(check=NAME, severity="ok", said=f"CPU: {cpu.name}, {cpu.cores} cores{vectors}.")
    ]
    for problem in machine.problems:
        said, _, fix = problem.partition(". ")
        found.append(Finding(check=NAME, severity="warning", said=f"{said}.", fix=fix or said))
    found.extend(_judge_card(card, software) for card in machine.accelerators)
    if not machine.accelerators:
        said = "no graphics card or chip that an engine could use; the CPU will do the work."
        found.append(Finding(check=NAME, severity="note", said=said))
    return found


def _judge_card(card: Accelerator, software: Software) -> Finding:
    driver = f", driver {card.driver}" if card.driver else ""
    capability = f" ({card.capability})" if card.capability else ""
    said = f"{card.name}{capability}: {size(card.free)} of {size(card.memory)} unused{driver}."
    if _is_used(card, software):
        return Finding(check=NAME, severity="ok", said=said)
    return Finding(
        check=NAME,
        severity="warning",
        said=f"{said} No engine that is installed can use it.",
        fix=_INSTALL[card.kind],
    )


def _is_used(card: Accelerator, software: Software) -> bool:
    if card.kind == "metal":
        return software.mlx or "mps" in software.torch
    if card.kind == "cuda" and software.vllm:
        return True
    return card.kind in software.torch


async def _run(situation: Situation) -> list[Finding]:
    return judge(await situation.machine(), situation.software())


CHECK = Check(NAME, "Accelerator", _run)
