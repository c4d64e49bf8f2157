"""Make a virtual environment and install echo-p2p into it: `install.py VENV EXTRA`.

Standard library only. Says in one sentence what a machine lacks, before pip would print a page of
compiler errors: one dependency of libp2p (fastecdsa) is compiled where no wheel fits, which needs
a C compiler and the GMP headers.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GMP_LINES = {
    "apt-get": "sudo apt-get install -y gcc libgmp-dev python3-dev",
    "dnf": "sudo dnf install -y gcc gmp-devel python3-devel",
    "pacman": "sudo pacman -S --needed gcc gmp",
    "brew": "xcode-select --install; brew install gmp",
}


def fail(sentence: str) -> None:
    sys.exit(f"echo-p2p cannot be installed: {sentence}")


def can_compile_gmp() -> bool:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <gmp.h>\nint main(void) { return 0; }\n")
        command = [compiler, "-c", str(source), "-o", str(Path(folder, "probe.o"))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> None:
    venv, extra = Path(sys.argv[1]), sys.argv[2]
    if sys.version_info < (3, 11):  # noqa: UP036 - this file runs before pip would refuse
        found = sys.version.split()[0]
        fail(f"Python 3.11 or newer is needed, this is {found}. Run: make PYTHON=python3.11 ...")
    python = venv / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        print(f"making {venv} ...", flush=True)
        if subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False).returncode:
            fail(
                "no virtual environment could be made. On Debian: sudo apt-get install python3-venv"
            )
    # what is not imported need not be compiled, and what is, is at its first import
    pip = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    if subprocess.run([*pip, "--upgrade", "pip"], check=False).returncode:
        print("pip could not be brought up to date; an older one takes longer.", flush=True)
    pip.append("--no-compile")
    wheel = subprocess.run(
        [*pip, "--only-binary", "fastecdsa", "fastecdsa"], capture_output=True, check=False
    )
    if wheel.returncode and not can_compile_gmp():
        tool = next((name for name in GMP_LINES if shutil.which(name)), "apt-get")
        fail(f"a C compiler and the GMP headers are missing. Run: {GMP_LINES[tool]}")
    print(f"installing echo-p2p[{extra}] (about 1.5 GB with torch; a few minutes) ...", flush=True)
    if subprocess.run([*pip, "-e", f"{ROOT}[{extra}]"], check=False).returncode:
        fail("pip failed; its last lines above say why.")


if __name__ == "__main__":
    main()
