"""TRL's trainers without models: their own mathematics, run on tensors that we hand them.

Nothing of TRL is imitated. `Grpo`, `Rloo` and `Dpo` are its trainers; what is replaced is where
their numbers come from: generation, rewards and the model's forward pass give what the test wants.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import torch
from trl import DPOTrainer, GRPOTrainer, RLOOTrainer

PAD = 0

_ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"),
    gather=lambda tensor: tensor,
    gather_for_metrics=lambda tensor: tensor,
    reduce=lambda tensor, reduction: tensor,
    num_processes=1,
    process_index=0,
)


class _Given:
    """Rollouts [B, T] with masks, and the log-probabilities of four policies."""

    given: Any
    _tokenizer = SimpleNamespace(pad_token_id=PAD)

    def prepare(self, given: Any, *, group_size: int, **settings: Any) -> None:
        self.given = given
        names = {
            "accelerator": _ACCELERATOR,
            "model": SimpleNamespace(training=False, is_gradient_checkpointing=False),
            "ref_model": SimpleNamespace(),
            "environment_factories": None,
            "environments": None,
            "tools": None,
            "_is_vlm": False,
            "pad_to_multiple_of": None,
            "mask_truncated_completions": False,
            "num_iterations": 1,
            "num_generations": group_size,
            "num_generations_eval": group_size,
            "reward_weights": torch.ones(1),
            "reward_func_names": ["reward"],
            "reward_clip_range": None,
            "log_multimodal": False,
            "multi_objective_aggregation": "sum_then_normalize",
            "normalize_advantages": False,
            "beta": 0.0,
            "use_vllm": False,
            "aux_loss_enabled": False,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "_entropy_bonus_enabled": False,
            "use_adaptive_entropy": False,
            "current_gradient_accumulation_steps": 1,
            "_pending_extra_logs": {},
            "_pending_metrics": {},
            "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
            "_logs": {
                "prompt": [], "completion": [], "advantages": [], "images": [],
                "rewards": defaultdict(list), "extra": defaultdict(list),
            },
            "args": SimpleNamespace(
                per_device_eval_batch_size=len(given.rewards),
                steps_per_generation=1,
                gradient_accumulation_steps=1,
                gradient_checkpointing_kwargs=None,
                delta=None,
                use_bias_correction_kl=False,
            ),
        }  # fmt: skip
        delta = settings.pop("delta", None)
        for name, value in {**names, **settings}.items():
            setattr(self, name, value)
        self.args.delta = delta

    def _calculate_rewards(self, *_: Any) -> torch.Tensor:
        rewards: torch.Tensor = self.given.rewards[:, None]
        return rewards

    def _get_per_token_logps_and_entropies(self, model: Any, *_: Any, **how: Any) -> Any:
        if how.get("compute_entropy"):  # for the loss; else for what it needs to know before
            return self.given.learner, self.given.entropy, None
        known = self.given.reference if model is self.ref_model else self.given.before
        return known, None, None


class Grpo(_Given, GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer`, with the settings a test gives as its attributes."""

    def __init__(self, given: Any, **settings: Any) -> None:
        self.prepare(given, **settings)

    def _generate(self, _: Any) -> Any:
        one = self.given
        ids = [[1] * length for length in one.lengths]
        cut = [row[:length].tolist() for row, length in zip(one.sampler, one.lengths, strict=True)]
        own = [row[:length].tolist() for row, length in zip(one.own, one.lengths, strict=True)]
        prompts = [[1]] * len(ids)
        return prompts, ids, own, ids, cut if self.use_vllm else None, {}, None, None

    def inputs(self) -> dict[str, Any]:
        """What it would train on: advantages, importance ratios and so on."""
        made: dict[str, Any] = self._generate_and_score_completions(
            [{"prompt": "x"}] * len(self.given.rewards)
        )
        return made

    def loss(self, inputs: dict[str, Any]) -> torch.Tensor:
        loss: torch.Tensor = self._compute_loss(self.model, inputs)
        return loss


class Rloo(_Given, RLOOTrainer):  # type: ignore[misc]
    """`RLOOTrainer`, for its advantages."""

    def __init__(self, given: Any, **settings: Any) -> None:
        self.prepare(given, **settings)

    def _generate(self, _: Any) -> Any:
        ids = [[1] * length for length in self.given.lengths]
        return [[1]] * len(ids), ids, ids

    def advantages(self) -> torch.Tensor:
        found: torch.Tensor = self._generate_and_score_completions(
            [{"prompt": "x"}] * len(self.given.rewards)
        )["advantages"]
        return found


class Dpo(DPOTrainer):  # type: ignore[misc]
    """`DPOTrainer`, for its loss."""

    def __init__(self, beta: float) -> None:
        self.accelerator = _ACCELERATOR
        self.model = SimpleNamespace(training=False)
        self.beta, self.loss_types, self.loss_weights = beta, ["sigmoid"], [1.0]
        self.aux_loss_enabled = self.use_weighting = False
        self.ld_alpha, self.f_divergence_type, self.precompute_ref_logps = None, "reverse_kl", True
        self._total_train_tokens = 0
        self._metrics = {"eval": defaultdict(list)}

    def loss(self, logps: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor) -> Any:
        """Of rows [2P, T], the better answers first: log-probabilities, and where tokens are."""
        zeros = torch.zeros_like(logps)

        def model(**_: Any) -> Any:
            return SimpleNamespace(
                log_probs=logps * mask, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool()
            )

        better, worse = (reference * mask).sum(1).chunk(2)
        ids = torch.ones(len(logps), logps.shape[1] + 1, dtype=torch.long)
        inputs = {
            "input_ids": ids,
            "attention_mask": ids,
            "completion_mask": torch.cat([torch.zeros_like(mask[:, :1]), mask], 1),
            "ref_chosen_logps": better,
            "ref_rejected_logps": worse,
        }
        return self._compute_loss(model, inputs, return_outputs=False)
