"""What is seen of an update while it is made, one micro-batch after another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from echo_hub.learner.distributed import Ranks
from echo_hub.learner.guard import Measures, Reward
from echo_hub.learner.measures import clip_fraction, mismatch, ratio_metrics
from echo_hub.learner.objective import Outcome, Tokens

MEANS = ("entropy", "kl_reference", "value_error")
"""What `Outcome.sums` may hold."""


@dataclass
class Seen:
    """Collects; `metrics` is what came of it. Everything is kept on the CPU."""

    log_ratios: list[torch.Tensor] = field(default_factory=lambda: [torch.empty(0)])
    ratios: list[torch.Tensor] = field(default_factory=lambda: [torch.empty(0)])
    lags: list[torch.Tensor] = field(default_factory=lambda: [torch.empty(0)])
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    rollouts: int = 0
    useful: int = 0
    computed: int = 0
    steps: list[tuple[float, float, float, float]] = field(default_factory=list)

    def add(self, lengths: Sequence[int], computed: int, tokens: Tokens, outcome: Outcome) -> None:
        """A micro-batch of sequences of these lengths cost so many tokens, padding included."""
        self.rollouts += len(lengths)
        self.useful += sum(lengths)
        self.computed += computed
        self.log_ratios.append((tokens.logprobs.detach() - tokens.behaviour).cpu())
        self.ratios.append(outcome.ratios.cpu())
        self.lags.append(tokens.lags.cpu())
        for name, value in outcome.sums.items():
            self.sums[name] += value

    def join(self, own: Seen, ranks: Ranks) -> None:
        """Take up what all ranks, this one `own`, have seen of a step."""
        self.log_ratios.append(ranks.gather(torch.cat(own.log_ratios)))
        self.ratios.append(ranks.gather(torch.cat(own.ratios)))
        self.lags.append(ranks.gather(torch.cat(own.lags)))
        counts = ranks.total(own.rollouts, own.useful, own.computed)
        self.rollouts += int(counts[0])
        self.useful += int(counts[1])
        self.computed += int(counts[2])
        for name in MEANS:
            total, known = ranks.total(own.sums.get(name, 0.0), name in own.sums)
            if known:  # on one rank at least
                self.sums[name] += total

    def step(self, loss: float, norm: float, aligned: float, rate: float) -> None:
        """An optimiser step: its loss, gradient norm, cosine with the step before, and its size."""
        self.steps.append((loss, norm, aligned, rate))

    def age(self) -> tuple[float, float]:
        """Mean lag and effective sample size of the tokens so far; (0, 1) if there are none."""
        lags = torch.cat(self.lags)
        return float(lags.mean()) if len(lags) else 0.0, ratio_metrics(torch.cat(self.log_ratios))[
            "ess"
        ]

    def measures(self, reward: Reward) -> Measures:
        """What the guard judges by: of all that was computed so far, and of the last step."""
        log_ratios, lags = torch.cat(self.log_ratios), torch.cat(self.lags)
        loss, norm, _, _ = self.steps[-1]
        return Measures(
            loss=loss,
            grad_norm=norm,
            policy_kl=ratio_metrics(log_ratios)["kl"],
            mismatch_kl=mismatch(log_ratios[lags == 0]).get("mismatch_kl"),
            reward=reward,
        )

    def metrics(self, clip: tuple[float, float]) -> dict[str, float]:
        """Of the rollouts with a gradient, and of the steps.

        `trained_rollouts`; `padding`, the share of the computed tokens that were padding;
        `clip_fraction`, of the ratios that the loss clips; `ratio_metrics` and, of the tokens of
        lag 0, `mismatch`. Means over tokens: `entropy` and, where they were computed,
        `kl_reference` and `value_error`. Means over steps: `loss`, `grad_norm` (before it was
        clipped), `grad_cosine` (before it was held back) and `learning_rate`.
        """
        log_ratios, lags = torch.cat(self.log_ratios), torch.cat(self.lags)
        made = len(self.steps)
        loss, norm, aligned, rate = (sum(each) / made for each in zip(*self.steps, strict=True))
        return {
            "loss": loss,
            "grad_norm": norm,
            "grad_cosine": aligned,
            "learning_rate": rate,
            "trained_rollouts": float(self.rollouts),
            "padding": 1.0 - self.useful / self.computed if self.computed else 0.0,
            "clip_fraction": clip_fraction(torch.cat(self.ratios), clip),
            **ratio_metrics(log_ratios),
            **mismatch(log_ratios[lags == 0]),
            **{name: total / len(log_ratios) for name, total in self.sums.items()},
        }
