"""Install one engine beside what it needs and run its tests: `test_engine.py ENGINE [PYTEST ARGS]`.

Tests that are marked slow are left out; `-m ENGINE` as an argument runs them too. Standard library
only. vLLM and MLX want other versions of what the project uses elsewhere, so each
has an environment of its own, made from a list in which everything is pinned. Where an engine
cannot be had, the one line says so and why, and nothing fails; where it can, a failure to install
it is one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "scripts" / "engines"
TORCH = "torch==2.13.0+cpu"
TESTS = ("tests/engines",)


def missing_platform(engine: str) -> str:
    """Why the engine cannot be installed on this machine; empty if it can."""
    machine = f"{platform.system()} {platform.machine()}"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    if engine == "mlx" and machine == "Darwin arm64":
        return ""
    if machine != "Linux x86_64":
        return f"there is no build of it to test on {machine}"
    if python not in ("3.11", "3.12", "3.13"):
        return f"its dependencies are pinned for Python 3.11 to 3.13, this is {python}"
    return ""


def steps(engine: str) -> list[list[str]]:
    """Arguments of the pip calls, in order."""
    project = ["--no-deps", "-e", str(ROOT)]
    if platform.system() == "Darwin":
        tools = ["pytest", "pytest-timeout", "hypothesis", "psutil"]
        return [["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[mac]", *tools]]
    lists = [["--no-deps", "-r", str(LISTS / f"{engine}.txt")]]
    if engine == "vllm":
        lists.append(["--no-deps", "--require-hashes", "-r", str(LISTS / "vllm-wheel.txt")])
    return [*lists, project]


def stamp_of(engine: str) -> str:
    files = [*sorted(LISTS.glob(f"{engine}*.txt")), ROOT / "pyproject.toml", Path(__file__)]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def install(engine: str, venv: Path) -> str:
    """Make the environment; why not, if it cannot be had here. Exits if pip fails otherwise."""
    stamp, mark = venv / ".installed", stamp_of(engine)
    if stamp.exists() and stamp.read_text() == mark:
        return ""
    print(f"installing {engine} into {venv.name} (up to 3 GB; a few minutes) ...", flush=True)
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--no-compile"]
    for arguments in steps(engine):
        done = subprocess.run([*pip, *arguments], stderr=subprocess.PIPE, text=True, check=False)
        errors = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        if done.returncode and f"No matching distribution found for {TORCH}" in done.stderr:
            return f"no CPU build of torch can be had here ({TORCH})"
        if done.returncode:
            sys.exit("\n".join([*errors, f"{engine} could not be installed."]))
    stamp.write_text(mark)
    print(f"installed {engine} in {time.monotonic() - start:.0f} s", flush=True)
    return ""


def main() -> None:
    engine, arguments = sys.argv[1], sys.argv[2:]
    venv = ROOT / f".venv-{engine}"
    reason = missing_platform(engine) or install(engine, venv)
    if reason:
        print(f"SKIPPED the tests of the {engine} engine: {reason}.", flush=True)
        return
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "hub", "node"))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    chosen = ["-m", f"{engine} and not slow", *arguments]  # of two -m, the last one counts
    command = [str(venv / "bin" / "python"), "-m", "pytest", *chosen, *TESTS]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
