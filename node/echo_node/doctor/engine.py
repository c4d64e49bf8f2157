"""The engines: each is imported in a process of its own, so that a crash is a finding."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass

import trio

from echo_node.doctor.findings import Finding
from echo_node.doctor.situation import Check, Situation
from echo_node.fit import Software

NAME = "engine"
IMPORT_S = 240.0
_CODE = {
    "torch": "import torch, transformers; print(torch.__version__)",
    "vllm": "import vllm; print(vllm.__version__)",
    "mlx": "import mlx.core, mlx_lm; print(mlx.core.__version__)",
}
_PACKAGE = {"torch": "echo-p2p", "vllm": "echo-p2p[cuda]", "mlx": "echo-p2p[mac]"}


@dataclass(frozen=True)
class Import:
    """How an import ended. `code` None: not within `IMPORT_S`; negative: killed by a signal."""

    engine: str
    code: int | None
    out: str = ""
    err: str = ""


async def try_import(engine: str, *, code: str | None = None) -> Import:
    """Import an engine as its process would; `code` is for tests."""
    command = [sys.executable, "-c", code or _CODE[engine]]
    try:
        with trio.fail_after(IMPORT_S):
            done = await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False
            )
    except trio.TooSlowError:
        return Import(engine, None)
    out, err = (text.decode(errors="replace").strip() for text in (done.stdout, done.stderr))
    return Import(engine, done.returncode, out, err)


def judge(imports: list[Import]) -> list[Finding]:
    if not imports:
        return [
            Finding(
                check=NAME,
                severity="error",
                said="no engine is installed.",
                fix='Install one: pipx install --force echo-p2p, or "echo-p2p[cuda]" for an NVIDIA '
                'card, or "echo-p2p[mac]" for a Mac.',
            )
        ]
    return [_judge_one(one, alone=len(imports) == 1) for one in imports]


def _judge_one(one: Import, *, alone: bool) -> Finding:
    if one.code == 0:
        version = one.out.splitlines()[-1] if one.out else ""
        return Finding(check=NAME, severity="ok", said=f"{one.engine} {version} can be imported.")
    return Finding(
        check=NAME,
        severity="error" if alone else "warning",
        said=f"{one.engine} cannot be imported: {_why(one)}.",
        fix=f'Install it anew: pipx install --force "{_PACKAGE[one.engine]}"',
    )


def _why(one: Import) -> str:
    if one.code is None:
        return f"it was not done after {IMPORT_S:.0f} s"
    last = one.err.splitlines()[-1].strip().rstrip(".") if one.err else ""
    if one.code < 0:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-one.code, str(-one.code))
        return f"it crashed ({name}){': ' + last if last else ''}"
    return last or f"exit code {one.code}"


def installed(software: Software) -> list[str]:
    """The engines to try."""
    present = {"torch": bool(software.torch), "vllm": software.vllm, "mlx": software.mlx}
    return [name for name, there in present.items() if there]


async def _run(situation: Situation) -> list[Finding]:
    return judge([await try_import(name) for name in installed(situation.software())])


CHECK = Check(NAME, "Engine", _run)
