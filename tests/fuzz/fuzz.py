"""Coverage-guided fuzzing of what reads bytes from outside: `python tests/fuzz/fuzz.py TARGET`.

    pip install -c constraints.txt -e '.[fuzz]'
    python tests/fuzz/fuzz.py manifest -max_total_time=300

What follows TARGET goes to libFuzzer. Memory over 1 GiB, or an input that takes over 10 s, is a
finding like a crash. Interesting inputs are kept in fuzz-corpus/TARGET of the working folder, and
the next run begins with them; findings are put beside it. Without TARGET it lists them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["echo_p2p"]):
    from fuzz_targets import TARGETS

CORPUS = Path("fuzz-corpus")
LIMITS = ["-rss_limit_mb=1024", "-timeout=10", "-max_len=65536"]


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: fuzz.py {'|'.join(TARGETS)} [libFuzzer options]")
    target = TARGETS[sys.argv[1]]

    def run(data: bytes) -> None:
        target.run(data)

    corpus = CORPUS / sys.argv[1]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    findings = f"-artifact_prefix={CORPUS}/{sys.argv[1]}-"
    atheris.Setup([sys.argv[0], *LIMITS, findings, *sys.argv[2:], str(corpus)], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
