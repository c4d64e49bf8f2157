"""One update after another, each of which counts wholly or not at all.

Promises: an update is one optimiser step on all its groups, however many micro-batches they take.
Loss, gradient norm and new weights are checked to be finite, and the checkpoint is on disk, before
the version rises; if any of that fails the state is bit for bit as before (see `checkpoint`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from echo_hub.config import RunConfig
from echo_hub.learner.batches import micro_batches, padded_tokens
from echo_hub.learner.checkpoint import TrainState
from echo_hub.learner.guard import Measures, Memory, Refusal, Reward, Why, judge
from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.objective import clipped_loss, group_advantages, ratio_metrics
from echo_hub.learner.policy import Policy
from echo_p2p.errors import LearnerError, UpdateRefusedError


@dataclass(frozen=True)
class _Sample:
    """One rollout as the loss sees it."""

    prompt: list[int]
    answer: list[int]
    behaviour: list[float]
    advantage: float
    lag: int

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.answer)


class Trainer:
    """A policy and its optimiser; `state` is all that an update changes."""

    def __init__(self, policy: Policy, config: RunConfig) -> None:
        self.policy = policy
        self._config = config
        learner = config.learner
        self._optimizer = torch.optim.AdamW(
            list(policy.weights.values()),
            lr=learner.learning_rate,
            betas=learner.betas,
            weight_decay=learner.weight_decay,
            fused=True,
        )
        self.state = TrainState(policy, self._optimizer, device=learner.device)

    @property
    def version(self) -> int:
        """The version that policy and optimiser have reached."""
        return self.state.version

    def train(self, groups: Sequence[TrainGroup], out: Path) -> dict[str, float]:
        """One update on `groups`; its checkpoint goes to `out`. Returns its metrics.

        Of all rollouts: `reward_mean`, `reward_std`, `lag_mean`, `lag_max`, `tokens`,
        `zero_advantage_groups`. Of those with an advantage: `trained_rollouts`, `padding` (share of
        the computed tokens that were padding), `lag0_tokens`, and, if there are any, by how much
        the nodes' log-probabilities differ from ours there: `mismatch_mean`, `mismatch_max`. Of the
        step: `loss`, `grad_norm` (before it was clipped), `seconds`. See also `ratio_metrics`.
        """
        before = self.state.copy()
        try:
            metrics = self._update(groups)
            self.state.version += 1
            self.state.save(out)
        except BaseException:
            self.state.restore(before)
            raise
        return metrics

    def save(self, out: Path) -> None:
        """Write a checkpoint folder, whole or not at all."""
        self.state.save(out)

    def resume(self, checkpoint: Path) -> None:
        """Take over the state in a checkpoint folder; LearnerError if it is not one of this run."""
        self.state.resume(checkpoint)

    def _update(self, groups: Sequence[TrainGroup]) -> dict[str, float]:
        started = time.perf_counter()
        samples, metrics = self._samples(groups)
        rollouts = sum(len(group.rollouts) for group in groups)
        normaliser = float(rollouts * self._config.sampling.max_new_tokens)
        for weight in self.policy.weights.values():
            weight.grad = torch.zeros_like(weight)
        loss, padded, log_ratios, lags = 0.0, 0, [torch.empty(0)], [torch.empty(0)]
        budget, packed = self._config.learner.microbatch_tokens, self.policy.packs
        lengths = [sample.length for sample in samples]
        for batch in micro_batches(lengths, budget, packed=packed):
            chosen = [samples[i] for i in batch]
            part, ratios = self._backward(chosen, normaliser)
            loss += part
            padded += padded_tokens([lengths[i] for i in batch], packed=packed)
            log_ratios.append(ratios)
            lags.append(_per_token([float(sample.lag) for sample in chosen], chosen))
        norm = self._gradient_norm()
        all_ratios, fresh = torch.cat(log_ratios), torch.cat(lags) == 0
        clip = self._config.learner.clip
        apart = ratio_metrics(all_ratios, clip)
        self._guarded_step(
            Measures(
                loss=loss,
                grad_norm=norm,
                policy_kl=apart["kl"],
                mismatch_kl=ratio_metrics(all_ratios[fresh], clip)["kl"] if fresh.any() else None,
                reward=Reward.of([[r.reward for r in group.rollouts] for group in groups]),
            )
        )
        metrics |= {"loss": loss, "grad_norm": norm, "trained_rollouts": float(len(samples))}
        metrics["padding"] = 1.0 - sum(s.length for s in samples) / padded if padded else 0.0
        metrics |= apart
        metrics |= _mismatch(all_ratios[fresh])
        metrics["seconds"] = time.perf_counter() - started
        return metrics

    def _samples(self, groups: Sequence[TrainGroup]) -> tuple[list[_Sample], dict[str, float]]:
        """The rollouts that have a gradient, and what there is to say of all of them.

        A rollout of advantage zero is left out: it would add exactly nothing to the gradient.
        """
        lags = [self.version - group.version for group in groups]
        if not groups or len({len(group.rollouts) for group in groups}) != 1:
            raise LearnerError("an update needs groups, all with the same number of rollouts.")
        if min(lags) < 0 or max(lags) > self._config.staleness:
            raise LearnerError(
                f"version {self.version} was given groups of lag {min(lags)} to {max(lags)}, "
                f"where 0 to {self._config.staleness} may be trained on."
            )
        answers = [rollout for group in groups for rollout in group.rollouts]
        if not all(0 < len(rollout.tokens) == len(rollout.logprobs) for rollout in answers):
            raise LearnerError("a rollout is empty, or has not one log-probability for each token.")
        rewards = torch.tensor([[r.reward for r in group.rollouts] for group in groups])
        if not torch.isfinite(rewards).all():
            raise LearnerError("a reward is not finite.")
        advantages = group_advantages(rewards)
        samples = [
            _Sample(group.prompt, rollout.tokens, rollout.logprobs, advantage, lag)
            for group, lag, row in zip(groups, lags, advantages.tolist(), strict=True)
            for rollout, advantage in zip(group.rollouts, row, strict=True)
            if advantage != 0.0
        ]
        return samples, {
            "reward_mean": float(rewards.mean()),
            "reward_std": float(rewards.std(correction=0)),
            "lag_mean": sum(lags) / len(lags),
            "lag_max": float(max(lags)),
            "zero_advantage_groups": float((advantages == 0).all(-1).sum()),
            "tokens": float(sum(len(rollout.tokens) for rollout in answers)),
        }

    def _backward(self, samples: list[_Sample], normaliser: float) -> tuple[float, torch.Tensor]:
        """Add one micro-batch's gradient; its loss, and its tokens' log ratios [N] on the CPU."""
        logprobs = self.policy.logprobs([(s.prompt, s.answer) for s in samples])
        claimed = torch.tensor([value for sample in samples for value in sample.behaviour])
        behaviour = claimed.to(logprobs.device)
        advantages = _per_token([s.advantage for s in samples], samples).to(logprobs.device)
        clip = self._config.learner.clip
        loss = clipped_loss(logprobs, behaviour, advantages, clip=clip, normaliser=normaliser)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach()), (logprobs.detach() - behaviour).cpu()

    def _gradient_norm(self) -> float:
        """Clip the gradient; its norm before that."""
        weights = list(self.policy.weights.values())
        norm = torch.nn.utils.clip_grad_norm_(weights, self._config.learner.max_grad_norm)
        return float(norm)

    def _guarded_step(self, measures: Measures) -> None:
        """The optimiser step, if the guard finds nothing wrong and the new weights are finite."""
        bounds = self._config.guard
        memory = Memory.from_json(self.state.facts.get("guard", {}))
        refusal = judge(memory, measures, bounds)
        if refusal is None:
            self._optimizer.step()
            if not all(bool(torch.isfinite(w).all()) for w in self.policy.weights.values()):
                refusal = Refusal(Why.NOT_FINITE, "it made weights that are not finite.")
        if refusal is not None:
            raise UpdateRefusedError(
                f"update {self.version + 1} was not applied: {refusal.sentence}",
                why=refusal.why,
                back_to=refusal.back_to,
            )
        memory = memory.after(self.version + 1, measures, bounds)
        self.state.facts = {**self.state.facts, "guard": memory.to_json()}


def _per_token(values: list[float], samples: list[_Sample]) -> torch.Tensor:
    """One value a sample, repeated for each token of its answer: [N]."""
    lengths = torch.tensor([len(sample.answer) for sample in samples])
    return torch.tensor(values).repeat_interleave(lengths)


def _mismatch(log_ratios: torch.Tensor) -> dict[str, float]:
    """How far the node's log-probabilities are from the learner's for the very same policy."""
    if not log_ratios.numel():
        return {"lag0_tokens": 0.0}
    apart = log_ratios.abs()
    return {
        "lag0_tokens": float(apart.numel()),
        "mismatch_mean": float(apart.mean()),
        "mismatch_max": float(apart.max()),
    }
