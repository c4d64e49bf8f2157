"""The canary: a version's files, read afresh, must answer as the policy that was trained does.

Promises: `Canary.check` returns only if the folder holds, bit for bit, the weights that are in
memory, scaled as they were trained, and if the base with them merged in, as a node merges them,
answers every canary prompt with finite log-probabilities that are the trained policy's within
`tolerance`. Nothing of an earlier reading is used again.

What else could be wrong with a version is the guard's to see: it looks at updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import msgspec
import torch

from echo_hub.audit.reader import Reader
from echo_hub.learner.adapters import lora_layers
from echo_hub.learner.policy import Policy, PromptAndAnswer
from echo_p2p import canary as canaries
from echo_p2p.errors import LearnerError

ANSWER_TOKENS = 4
"""Length of each canary answer."""

TOLERANCES = {"float32": 0.01, "bfloat16": 0.5}
"""By the base's dtype, nats: merging rounds each weight to it, training adds the adapter's output
in float32 instead."""


class _Scale(msgspec.Struct, frozen=True):
    """What of adapter_config.json decides how an adapter is scaled."""

    r: int
    lora_alpha: float
    use_rslora: bool = False
    use_dora: bool = False

    @property
    def factor(self) -> float:
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


class Canary:
    """Checks the folders that a policy is written to.

    Args:
        prompts: token ids of the prompts; without any, only the weights are compared.
        tolerance: most that a log-probability may differ, in nats.
        merges: merge the weights into the base as nodes do; not if that has 4 bits only.
        for_nodes: most that a node's log-probabilities may differ from ours on average, in nats.
    """

    def __init__(
        self,
        policy: Policy,
        prompts: Sequence[list[int]],
        *,
        tolerance: float,
        merges: bool = True,
        for_nodes: float = 1.0,
    ) -> None:
        self._policy = policy
        self._merges = merges
        self._prompts = prompts
        self._tolerance = tolerance
        self._for_nodes = for_nodes

    @torch.no_grad()
    def leave(self, folder: Path) -> None:
        """Write beside a version's weights what a node that has them must find (`echo_p2p.canary`).

        Nothing if they cannot be read back or give no numbers: `check` says so.
        """
        sequences = self._answered()
        try:
            found = self._read(folder, sequences)
        except LearnerError:
            return
        if not torch.isfinite(found).all():
            return
        ends = found.view(len(sequences), ANSWER_TOKENS).tolist()
        said = [
            canaries.CanarySequence([*prompt, *answer], logprobs)
            for (prompt, answer), logprobs in zip(sequences, ends, strict=True)
        ]
        canaries.write_canary(folder, canaries.Canary(said, self._for_nodes))

    @torch.no_grad()
    def check(self, folder: Path) -> float:
        """LearnerError unless the folder is good; the largest difference of a log-probability."""
        weights = self._policy.read_adapter(folder)
        for name, weight in self._policy.weights.items():
            if not torch.equal(weights[name], weight.data):
                raise LearnerError(f"{name} in {folder} is not what was trained.")
        self._check_scale(folder)
        if not self._prompts:
            return 0.0
        sequences = self._answered()
        ours = self._policy.logprobs(sequences)
        if self._merges:
            theirs = self._read(folder, sequences)
        else:
            with self._policy.wearing(weights):
                theirs = self._policy.logprobs(sequences)
        if not (torch.isfinite(ours).all() and torch.isfinite(theirs).all()):
            raise LearnerError(f"the policy in {folder} does not give finite log-probabilities.")
        largest = float((ours - theirs).abs().max())
        if not largest <= self._tolerance:  # nor if it is no number
            raise LearnerError(
                f"the policy in {folder} answers otherwise than the one that was trained: "
                f"log-probabilities differ by up to {largest:.3g}, {self._tolerance:g} is allowed."
            )
        return largest

    def _check_scale(self, folder: Path) -> None:
        layers = lora_layers(self._policy.causal)
        if not layers:
            return
        path = folder / "adapter_config.json"
        try:
            scale = msgspec.json.decode(path.read_bytes(), type=_Scale)
        except (OSError, msgspec.DecodeError) as error:
            raise LearnerError(f"cannot read {path}: {error}.") from error
        for name, layer in layers:
            if not math.isclose(layer.scaling["default"], scale.factor, rel_tol=1e-6):
                raise LearnerError(f"{path} scales {name} otherwise than it was trained.")

    def _answered(self) -> list[PromptAndAnswer]:
        """The prompts, each with the likeliest answer of the policy, token by token."""
        answers: list[list[int]] = [[] for _ in self._prompts]
        for _ in range(ANSWER_TOKENS):
            asked = [(p, [*a, 0]) for p, a in zip(self._prompts, answers, strict=True)]
            hidden, _ = self._policy.answers(asked)  # the last of each predicts what is to come
            ends = torch.tensor([len(answer) for _, answer in asked]).cumsum(0) - 1
            likeliest = self._policy.logits(hidden[ends.to(hidden.device)]).argmax(-1)
            for answer, token in zip(answers, likeliest.tolist(), strict=True):
                answer.append(token)
        return list(zip(self._prompts, answers, strict=True))

    def _read(self, folder: Path, sequences: Sequence[PromptAndAnswer]) -> torch.Tensor:
        """Log-probabilities of all answers, end to end, as a node would find them."""
        reader, found = Reader(self._policy), []
        with reader.wearing(folder):
            # prompts of one length share a pass
            for _, same in groupby(sequences, key=lambda one: len(one[0])):
                hidden, tokens = reader.answers([(prompt, [answer]) for prompt, answer in same])
                logprobs = self._policy.logits(hidden).log_softmax(-1)
                found.append(logprobs.gather(-1, tokens[:, None])[:, 0])
        return torch.cat(found)
