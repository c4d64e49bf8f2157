"""What a request to vLLM, here or on a server, carries to our logits processor: in plain types."""

from __future__ import annotations

from echo_node.engines.base import Job

KEY = "echo"
"""Name of our entry in vLLM's `extra_args`, which a server calls `vllm_xargs`."""


def carried(job: Job) -> dict[str, list[int | float]]:
    """The six values of a `streams.Stream`, and the number of the prompt's tokens."""
    how = job.sampling
    stream = (job.seed, job.index, job.start, how.temperature, how.top_k, how.top_p)
    return {KEY: [*stream, len(job.prompt)]}
