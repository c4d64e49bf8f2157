"""The policy: a base model with one LoRA adapter, as the learner trains it and the audit reads it.

Invariants: the base's weights never change; the adapter is float32 whatever the base is in; only
JSON and safetensors are read. Sequences are padded on the right, where causal attention never looks
from inside an answer, so positions are plain and no attention mask is needed; logits are computed
for answer tokens alone, and never for a whole large batch at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from echo_hub.config import LearnerSection
from echo_p2p.errors import ConfigError, LearnerError

HEAD_ELEMENTS = 1 << 23
"""Logits in memory at once: 32 MiB of float32."""

PromptAndAnswer = tuple[Sequence[int], Sequence[int]]
"""In token ids."""

_ADAPTER = "default"
_CHANGED = "base.path, learner.rank and learner.target_modules stay as they were when a run began."


class Policy:
    """One base model and one adapter. `weights` are the adapter's, by their names in its file."""

    def __init__(self, model: PreTrainedModel, lora: LoraConfig, device: str) -> None:
        wrapped: Any = get_peft_model(model, lora)
        # PEFT notes the snapshot's path; but this is published, and a path is nobody's business
        lora.base_model_name_or_path = Path(model.config.name_or_path).name
        causal = wrapped.get_base_model().to(device).eval()
        self._lora = lora
        self.causal: torch.nn.Module = causal
        self._device = torch.device(device)
        self._decoder: torch.nn.Module = causal.get_decoder()
        self._head: Callable[[torch.Tensor], torch.Tensor] = causal.get_output_embeddings()
        self.vocab_size: int = causal.config.vocab_size
        self.weights: dict[str, torch.nn.Parameter] = {
            name.replace(f".{_ADAPTER}.", "."): parameter
            for name, parameter in wrapped.named_parameters()
            if parameter.requires_grad
        }
        self._check_head(causal)

    @classmethod
    def load(
        cls,
        base: Path,
        config: LearnerSection,
        *,
        dtype: Literal["float32", "bfloat16"],
        seed: int,
    ) -> Policy:
        """Load a base snapshot and give it a fresh adapter, whose weights `seed` determines."""
        transformers_logging.disable_progress_bar()
        _check_device(config.device)
        try:
            model = AutoModelForCausalLM.from_pretrained(
                base,
                local_files_only=True,
                use_safetensors=True,
                attn_implementation="sdpa",  # never one that the snapshot names
                dtype=getattr(torch, dtype),
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(
                f"cannot load a base model from {base}: {error}",
                fix="base.path must be a folder with config.json and safetensors files.",
            ) from error
        _check_targets(model, config.target_modules)
        torch.manual_seed(seed)
        lora = LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=0.0,
            target_modules=list(config.target_modules),
            task_type="CAUSAL_LM",
        )
        return cls(model, lora, config.device)

    def answers(self, sequences: Sequence[PromptAndAnswer]) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward pass: hidden states [N, H] that predict the N answer tokens, and those [N].

        The answers lie end to end, in the order of `sequences`.
        """
        if not all(prompt and answer for prompt, answer in sequences):
            raise LearnerError("a prompt or an answer is empty.")
        width = max(len(prompt) + len(answer) for prompt, answer in sequences)
        ids = torch.zeros((len(sequences), width), dtype=torch.long)
        predicts = torch.zeros((len(sequences), width), dtype=torch.bool)
        for row, (prompt, answer) in enumerate(sequences):
            start, end = len(prompt), len(prompt) + len(answer)
            ids[row, :end] = torch.as_tensor([*prompt, *answer])
            predicts[row, start - 1 : end - 1] = True
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            raise LearnerError("a sequence has a token id that is not in the vocabulary.")
        targets = ids[:, 1:][predicts[:, :-1]].to(self._device)
        hidden = self._decoder(input_ids=ids.to(self._device), use_cache=False).last_hidden_state
        return hidden[predicts.to(self._device)], targets

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw logits, float32 [n, vocabulary], of hidden states [n, H]."""
        return self._head(hidden).float()

    def slices(self, count: int) -> Iterator[slice]:
        """Cuts `count` rows into pieces whose logits may be in memory at once."""
        rows = max(1, HEAD_ELEMENTS // self.vocab_size)
        for start in range(0, count, rows):
            yield slice(start, min(count, start + rows))

    def logprobs(self, sequences: Sequence[PromptAndAnswer]) -> torch.Tensor:
        """Log-probabilities [N] of all answer tokens, end to end; differentiable.

        Where the logits of all tokens would be many, they are computed again for the backward pass
        instead of kept.
        """
        hidden, targets = self.answers(sequences)
        pieces = list(self.slices(len(hidden)))
        if len(pieces) == 1:
            return self._logprobs(hidden, targets)
        return torch.cat(
            [
                checkpoint(self._logprobs, hidden[piece], targets[piece], use_reentrant=False)
                for piece in pieces
            ]
        )

    def _logprobs(self, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.cross_entropy(self.logits(hidden), targets, reduction="none")

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as PEFT does: adapter_model.safetensors and adapter_config.json."""
        folder.mkdir()
        tensors = {name: weight.detach().cpu() for name, weight in self.weights.items()}
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        self._lora.inference_mode = True
        self._lora.save_pretrained(str(folder))

    def read_adapter(self, folder: Path) -> dict[str, torch.Tensor]:
        """The weights in an adapter folder; LearnerError unless they could be this policy's."""
        file = folder / "adapter_model.safetensors"
        try:
            tensors: dict[str, torch.Tensor] = load_file(file, device=str(self._device))
        except (OSError, SafetensorError) as error:
            raise LearnerError(f"cannot read {file}: {error}.") from error
        check_tensors(tensors, self.weights, source=str(file))
        return tensors

    @torch.no_grad()
    def assign(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make these the adapter's weights."""
        for name, weight in self.weights.items():
            weight.copy_(tensors[name])

    @contextmanager
    def wearing(self, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Within the block the policy has another adapter's weights; after it, exactly its own."""
        own = {name: weight.data for name, weight in self.weights.items()}
        try:
            for name, weight in self.weights.items():
                weight.data = tensors[name]
            yield
        finally:
            for name, weight in self.weights.items():
                weight.data = own[name]

    @torch.no_grad()
    def _check_head(self, causal: torch.nn.Module) -> None:
        ids = torch.arange(min(8, self.vocab_size), device=self._device)[None]
        whole = causal(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self._decoder(input_ids=ids, use_cache=False).last_hidden_state)
        if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3):
            raise ConfigError(
                f"{type(causal).__name__} changes its logits after its output layer "
                "(soft-capping or scaling), which this learner does not do.",
                fix="Choose another base.path.",
            )


def check_tensors(
    tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], *, source: str
) -> None:
    """LearnerError unless `tensors` have the names, shapes and types of `like` and are finite."""
    if tensors.keys() != like.keys():
        odd = sorted(tensors.keys() ^ like.keys())
        raise LearnerError(
            f"{source} is not of this run: {len(odd)} names differ, first {odd[0]}.", fix=_CHANGED
        )
    for name, tensor in tensors.items():
        if tensor.shape != like[name].shape or tensor.dtype != like[name].dtype:
            raise LearnerError(
                f"{source} is not of this run: {name} has another shape or type.", fix=_CHANGED
            )
        if not torch.isfinite(tensor).all():
            raise LearnerError(f"{source} has a non-finite number in {name}.")


def _check_device(name: str) -> None:
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch has no one error for it
        why = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(
            f"learner.device = {name!r} cannot be used here: {why:.120}.",
            fix='Set it to "cpu", or install a torch that was built for this device.',
        ) from error


def _check_targets(model: torch.nn.Module, targets: Sequence[str]) -> None:
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
    }
    missing = sorted(set(targets) - linear)
    if missing:
        raise ConfigError(
            f"learner.target_modules: the base model has no linear layers named "
            f"{', '.join(missing)}.",
            fix=f"It has: {', '.join(sorted(linear))}.",
        )
