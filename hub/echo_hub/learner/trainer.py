"""One update after another, each of which counts wholly or not at all.

Promises: an update is `steps_per_update` optimiser steps, one as a rule, however many micro-batches
its groups take; it computes what the objective needs (log-probabilities, entropies, the
reference's and the proximal policy's, values) and nothing more. The guard has judged each step, the
new weights are finite, and the checkpoint is on disk and was read back (see `guard`, `canary`),
before the version rises; if any of that fails the state is bit for bit as before (see
`checkpoint`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import torch

from echo_hub.config import RunConfig
from echo_hub.learner.adaptive_clip import balanced_bounds
from echo_hub.learner.advantages import whitened
from echo_hub.learner.alignment import excess
from echo_hub.learner.batches import padded_tokens
from echo_hub.learner.canary import TOLERANCES, Canary
from echo_hub.learner.checkpoint import TrainState
from echo_hub.learner.distributed import ALONE, Ranks
from echo_hub.learner.guard import Measures, Memory, Refusal, Reward, Why, good_version, judge
from echo_hub.learner.losses import ratio_of
from echo_hub.learner.measures import cosine
from echo_hub.learner.messages import TrainGroup
from echo_hub.learner.objective import Objective, Tokens
from echo_hub.learner.policy import Policy, Reading
from echo_hub.learner.samples import Batch, Part, Sample, make_batch
from echo_hub.learner.schedule import step_size
from echo_hub.learner.seen import Seen
from echo_hub.learner.values import ValueHead
from echo_p2p import canary as canaries
from echo_p2p.errors import LearnerError, UpdateRefusedError


@dataclass
class Known:
    """Of one sample, per token [n], from before the first step: see `Tokens`."""

    proximal: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    targets: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Trainer:
    """A policy and its optimiser; `state` is all that an update changes."""

    def __init__(
        self,
        policy: Policy,
        config: RunConfig,
        ranks: Ranks = ALONE,
        *,
        canary: Sequence[list[int]] = (),
    ) -> None:
        self.policy = policy
        self._ranks = ranks
        self._config = config
        self._several_arms = len(config.mixture.arms) > 1
        learner = config.learner
        self._optimizer = torch.optim.AdamW(
            list(policy.weights.values()),
            lr=learner.learning_rate,
            betas=learner.betas,
            weight_decay=learner.weight_decay,
            fused=True,
        )
        self.state = TrainState(policy, self._optimizer, device=learner.device)
        self._objective = Objective(learner, limit=config.sampling.max_new_tokens)
        self._value_head: ValueHead | None = None
        if self._objective.needs_values:
            self._value_head = ValueHead(
                policy.width, policy.device, learning_rate=learner.value_learning_rate
            )
            self.state.extra |= self._value_head.state
        self._previous = {n: torch.zeros_like(w.data) for n, w in policy.weights.items()}
        self.state.extra |= {f"gradient.{n}": tensor for n, tensor in self._previous.items()}
        tolerance = config.guard.canary_difference or TOLERANCES[config.base.dtype]
        # nodes merge into the base, which is to be had neither in pieces nor in 4 bits
        merges = config.base.quantisation == "none" and not ranks.sharded
        self._canary = Canary(
            policy,
            canary,
            tolerance=tolerance,
            merges=merges,
            for_nodes=canaries.TOLERANCES[config.base.dtype],
        )
        if merges and canary:
            self.state.beside = self._canary.leave

    @property
    def version(self) -> int:
        """The version that policy and optimiser have reached."""
        return self.state.version

    def train(
        self,
        groups: Sequence[TrainGroup],
        out: Path,
        *,
        batch: Sequence[int] = (),
        blank: Sequence[Sequence[float]] = (),
        blank_arms: Sequence[int] = (),
        forget: bool = False,
    ) -> dict[str, float]:
        """One update on `groups`; its checkpoint goes to `out`. Returns its metrics.

        Of all rollouts: `reward_mean`, `reward_std`, `tokens`, `zero_advantage_groups`, and what
        `lag_metrics` says. Of the rest see `Seen`; `seconds` is the time it took, `good_version`
        what the guard says, once it knows.

        Args:
            batch: the groups' numbers in the ledger, for the checkpoint.
            blank, blank_arms: rewards and arms of groups that the update leaves out.
            forget: the guard remembers nothing of the updates before.
        """
        before = self.state.copy()
        try:
            if forget:
                self.state.facts = {**self.state.facts, "guard": {}}
            metrics = self._update(groups, blank, blank_arms or [0] * len(blank))
            self._save_next(out, batch)
            good = good_version(self._memory(), self._config.guard)
            if good is not None:
                metrics["good_version"] = float(good)
        except BaseException:
            self.state.restore(before)
            raise
        return metrics

    def roll_back(self, checkpoint: Path, out: Path) -> None:
        """Go on from an earlier checkpoint, under the next version; that one goes to `out`."""
        before = self.state.copy()
        try:
            earlier = self.state.read(checkpoint)
            self.state.restore(replace(earlier, version=self.version))
            self._save_next(out, ())
        except BaseException:
            self.state.restore(before)
            raise

    def save(self, out: Path) -> None:
        """Write a checkpoint folder, whole or not at all (of several ranks, the first does), and
        read it back."""
        self._ranks.first(lambda: self.state.save(out))
        self._check_files(out)

    def resume(self, checkpoint: Path) -> None:
        """Take over the state in a checkpoint folder; LearnerError if it is not one of this run."""
        self.state.resume(checkpoint)
        self._check_files(checkpoint)

    def _save_next(self, out: Path, batch: Sequence[int]) -> None:
        """The state as it is becomes the next version, if its files pass the canary."""
        self.state.version += 1
        self.state.facts = {**self.state.facts, "batch": list(batch)}
        self._ranks.first(lambda: self.state.save(out))
        try:
            self._check_files(out)
        except LearnerError as error:
            self._ranks.first(lambda: shutil.rmtree(out))
            raise UpdateRefusedError(
                f"version {self.version} does not count: {error.message}", why=Why.CANARY
            ) from error

    def _check_files(self, checkpoint: Path) -> None:
        """The canary, on all ranks: what one of them finds is an error on all."""
        error: LearnerError | None = None
        try:
            self._canary.check(checkpoint / "adapter")
        except LearnerError as caught:
            error = caught
        if self._ranks.total(float(error is not None))[0]:
            raise error or LearnerError(f"another rank could not read {checkpoint} back.")

    def _update(
        self,
        groups: Sequence[TrainGroup],
        blank: Sequence[Sequence[float]],
        blank_arms: Sequence[int],
    ) -> dict[str, float]:
        started = time.perf_counter()
        batch = make_batch(
            groups,
            self._config.learner,
            version=self.version,
            staleness=self._config.staleness,
            limit=self._config.sampling.max_new_tokens,
        )
        self._check_ids(batch)
        seen = Seen()
        known = self._look_ahead(batch)
        reward = Reward.of(
            [*([r.reward for r in group.rollouts] for group in groups), *blank],
            [*(group.arm for group in groups), *blank_arms] if self._several_arms else (),
        )
        clip = self._clip(batch.samples, known)
        for part in batch.parts:
            self._step(replace(part, clip=clip), known, seen, reward)
        self._remember(seen.measures(reward))
        metrics = batch.metrics | seen.metrics(clip)
        metrics["seconds"] = time.perf_counter() - started
        return metrics

    def _check_ids(self, batch: Batch) -> None:
        """Of all ranks' sequences on each: an error that one rank alone had would leave the others
        waiting for it."""
        known = range(self.policy.vocab_size)
        for sample in batch.samples:
            ids = sample.prompt + sample.answer
            if not sample.prompt or min(ids) not in known or max(ids) not in known:
                raise LearnerError(
                    "a prompt is empty, or a sequence has a token id that is not in the vocabulary."
                )

    def _micro_batches(self, units: list[list[Sample]]) -> list[list[list[list[Sample]]]]:
        """Of each rank."""
        lengths = [sum(sample.length for sample in unit) for unit in units]
        budget = self._config.learner.microbatch_tokens
        shares = self._ranks.divide(lengths, budget, packed=self.policy.packs)
        return [[[units[i] for i in batch] for batch in share] for share in shares]

    @torch.no_grad()
    def _look_ahead(self, batch: Batch) -> dict[int, Known]:
        """What the objective needs to know of samples (by `id`) before the first step is made."""
        objective = self._objective
        if not (objective.needs_proximal or objective.needs_values):
            return {}
        samples = [unit for part in batch.parts for unit in part.units]
        shares = self._micro_batches(samples)
        logprobs, values = [torch.empty(0)], [torch.empty(0)]
        for units in shares[self._ranks.rank]:
            reading = self._read([sample for unit in units for sample in unit])
            logprobs.append(reading.logprobs.cpu())
            if self._value_head is not None:
                values.append(self._value_head(reading.hidden).cpu())
        in_order = [one for share in shares for units in share for unit in units for one in unit]
        cut = [len(sample.sampled) for sample in in_order]
        known = {}
        proximal = torch.split(self._ranks.gather(torch.cat(logprobs)), cut)
        expected = self._ranks.gather(torch.cat(values))
        if self._value_head is None:
            expected = torch.zeros(sum(cut))
        for sample, own, value in zip(in_order, proximal, torch.split(expected, cut), strict=True):
            known[id(sample)] = Known(own, value)
        if objective.needs_values:
            self._estimate(batch.samples, known)
        return known

    def _estimate(self, samples: list[Sample], known: dict[int, Known]) -> None:
        """Advantages by the value function, whitened over the update, and the values' targets."""
        held = [known[id(sample)] for sample in samples]
        advantages, targets = self._objective.estimate(
            [sample.reward for sample in samples],
            [one.values for one in held],
            [
                one.proximal - torch.tensor(sample.behaviour)
                for sample, one in zip(samples, held, strict=True)
            ],
        )
        even = torch.split(whitened(torch.cat(advantages)), [len(row) for row in advantages])
        for sample, row, target in zip(samples, even, targets, strict=True):
            known[id(sample)].advantages, known[id(sample)].targets = row, target

    def _clip(self, samples: list[Sample], known: dict[int, Known]) -> tuple[float, float]:
        """How far the ratios of this update may leave 1, below and above."""
        rules = self._config.learner
        if not rules.balanced_clip or not samples:
            return rules.clip
        held = [known[id(sample)] for sample in samples]
        proximal = torch.cat([one.proximal for one in held])
        behaviour = torch.tensor([value for sample in samples for value in sample.behaviour])
        advantages = torch.cat(
            [
                one.advantages
                if self._objective.needs_values
                else torch.full_like(one.proximal, sample.advantage)
                for sample, one in zip(samples, held, strict=True)
            ]
        )
        low, high = balanced_bounds(ratio_of(proximal, behaviour), advantages)
        return 1.0 - low, high - 1.0

    def _read(self, samples: list[Sample]) -> Reading:
        """The policy's reading of the sampled tokens of these rollouts, end to end."""
        starts = accumulate((len(sample.answer) for sample in samples), initial=0)
        places = [
            start + position
            for start, sample in zip(starts, samples, strict=False)
            for position in sample.sampled
        ]
        whole = len(places) == sum(len(sample.answer) for sample in samples)
        asked = [(sample.prompt, sample.answer) for sample in samples]
        return self.policy.read(asked, None if whole else places)

    def _backward(
        self, units: list[list[Sample]], part: Part, known: dict[int, Known], seen: Seen
    ) -> float:
        """Add one micro-batch's gradient; its loss."""
        samples = [sample for unit in units for sample in unit]
        tokens = self._tokens(samples, known)
        outcome = self._objective(tokens, part)
        total = outcome.loss if outcome.value_loss is None else outcome.loss + outcome.value_loss
        total.backward()  # type: ignore[no-untyped-call]
        lengths = [sample.length for sample in samples]
        seen.add(lengths, padded_tokens(lengths, packed=self.policy.packs), tokens, outcome)
        return float(outcome.loss.detach())

    def _tokens(self, samples: list[Sample], known: dict[int, Known]) -> Tokens:
        reference = None
        if self._objective.needs_reference:
            with torch.no_grad(), self.policy.reference():
                reference = self._read(samples).logprobs
        reading = self._read(samples)
        device = reading.logprobs.device
        held = [known[id(sample)] for sample in samples] if known else []
        lengths = torch.tensor([len(sample.sampled) for sample in samples], dtype=torch.long)

        def each(values: list[float]) -> torch.Tensor:
            return torch.tensor(values).repeat_interleave(lengths).to(device)

        def joined(rows: list[torch.Tensor]) -> torch.Tensor:
            return torch.cat([torch.empty(0), *rows]).to(device)

        advantages = each([sample.advantage for sample in samples])
        values = targets = before = proximal = None
        if self._value_head is not None:
            advantages = joined([one.advantages for one in held])
            values = self._value_head(reading.hidden)
            targets = joined([one.targets for one in held])
            before = joined([one.values for one in held])
        if self._objective.needs_proximal:
            proximal = joined([one.proximal for one in held])
        return Tokens(
            logprobs=reading.logprobs,
            behaviour=torch.tensor([v for s in samples for v in s.behaviour]).to(device),
            advantages=advantages,
            lags=each([float(sample.lag) for sample in samples]),
            lengths=lengths.to(device),
            entropy=reading.entropy,
            reference=reference,
            proximal=proximal,
            values=values,
            targets=targets,
            before=before,
        )

    def _step(self, part: Part, known: dict[int, Known], seen: Seen, reward: Reward) -> None:
        """One optimiser step, if the guard finds nothing wrong and the new weights are finite."""
        weights = list(self.policy.weights.values())
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        loss, own = 0.0, Seen()
        for units in self._micro_batches(part.units)[self._ranks.rank]:
            loss += self._backward(units, part, known, own)
        trained = [*weights, *([] if self._value_head is None else [self._value_head.weight])]
        self._ranks.sum_gradients(trained)
        seen.join(own, self._ranks)
        (loss,) = self._ranks.total(loss)
        gradient = [grad for weight in weights if (grad := weight.grad) is not None]
        aligned = cosine(gradient, list(self._previous.values()))
        norm = torch.nn.utils.clip_grad_norm_(weights, self._config.learner.max_grad_norm)
        lag, ess = seen.age()
        rate = step_size(self._config.learner, lag=lag, ess=ess, update=self.version + 1)
        seen.step(loss, float(norm), aligned, rate)
        refusal = judge(self._memory(), seen.measures(reward), self._config.guard)
        if refusal is None:
            self._hold_back(gradient)
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
            if self._value_head is not None:
                self._value_head.step(self._config.learner.max_grad_norm)
                weights.append(self._value_head.weight)
            if not all(bool(torch.isfinite(weight).all()) for weight in weights):
                refusal = Refusal(Why.NOT_FINITE, "it made weights that are not finite.")
        if refusal is not None:
            raise UpdateRefusedError(
                f"update {self.version + 1} was not applied: {refusal.sentence}",
                why=refusal.why,
                back_to=refusal.back_to,
            )
        self._ranks.check_alike(weights)

    def _hold_back(self, gradient: list[torch.Tensor]) -> None:
        """Take off what points too much where the last gradient did, and remember this one."""
        last = list(self._previous.values())
        times = excess(gradient, last, self._config.learner.alignment_limit)
        for previous, grad in zip(last, gradient, strict=True):
            whole = grad.clone()
            grad.sub_(previous, alpha=times)
            previous.copy_(whole)

    def _memory(self) -> Memory:
        return Memory.from_json(self.state.facts.get("guard", {}))

    def _remember(self, measures: Measures) -> None:
        """An update was made: the guard judges the next ones by it."""
        memory = self._memory().after(self.version + 1, measures, self._config.guard)
        self.state.facts = {**self.state.facts, "guard": memory.to_json()}
