"""vLLM with its newer model runner, on a CPU: `python vllm_v2_program.py FOLDER`, answers as JSON.

That runner is what cards get. Its kernels are Triton's; here Triton's own interpreter runs them,
and vLLM is told that a Triton for CPUs is there. Everything else is vLLM as it is.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"

from triton.backends import Backend, backends


class Interpreter:
    """Stands where Triton's driver for CPUs would."""

    @staticmethod
    def is_active() -> bool:
        return True


backends["cpu"] = Backend(compiler=None, driver=Interpreter)

from engine_support import BASE, answer_all, mixed_work, write_adapter  # noqa: E402

from echo_node.engines.driver import Driver  # noqa: E402
from echo_node.engines.vllm import Options, VllmEngine  # noqa: E402


def main() -> None:
    folder = Path(sys.argv[1])
    adapters = [write_adapter(folder / str(seed), seed) for seed in range(2)]
    # the longest prompt is read in three parts
    engine = VllmEngine(Options(max_sequences=12, cache_bytes=64 << 20, batch_tokens=64))
    driver = Driver(engine)
    driver.load(BASE, "float32")
    for version, adapter in enumerate(adapters):
        driver.activate(version, adapter)
    orders = [(n, job, n % 2) for n, job in enumerate(mixed_work())]
    answers = answer_all(driver, orders)
    core = engine._core._client.engine_core  # type: ignore[union-attr]
    runner = type(core.model_executor.driver_worker.worker.model_runner)
    scores = driver.score(list(range(3, 20)))
    print(
        json.dumps(
            {
                "runner": f"{runner.__module__}.{runner.__name__}",
                "answers": [
                    [answers[n][0], answers[n][1].tokens, answers[n][1].logprobs]
                    for n in sorted(answers)
                ],
                "scores": scores,
            }
        )
    )
    engine.close()


if __name__ == "__main__":
    main()
