"""The policy: a base model and what is trained of it, as the learner steps and the audit reads it.

Invariants: with an adapter the base's weights never change; what is trained is float32 whatever the
base is in; only JSON and safetensors are read. Rows are padded on the right, where causal attention
never looks from inside an answer; a row of several sequences numbers the positions of each from 0,
by which the model keeps them apart. Logits are computed for answer tokens alone, and never for a
whole large batch at once. The model is in evaluation mode throughout: nothing is dropped out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from echo_hub.config import LearnerSection
from echo_hub.learner.adapters import LoraAdapter, WholeModel, check_tensors, make_adapter
from echo_hub.learner.base import Dtype, Quantisation, load_base
from echo_hub.learner.batches import rows_of
from echo_hub.learner.device import check_device
from echo_hub.learner.distributed import ALONE, Ranks
from echo_hub.learner.heads import TokenScores, head_rows, slices, token_scores
from echo_hub.learner.recompute import recompute_layers
from echo_p2p.errors import ConfigError, LearnerError

PromptAndAnswer = tuple[Sequence[int], Sequence[int]]
"""In token ids."""


class Reading(NamedTuple):
    """Of N answer tokens, end to end: log-probabilities [N], entropies [N] of the distributions
    they were drawn from, and the hidden states [N, H] that predict them."""

    logprobs: torch.Tensor
    entropy: torch.Tensor
    hidden: torch.Tensor


class Policy:
    """One base model and what is trained of it.

    `weights` are the trained ones, by their names in their file; `packs` says whether the model
    takes several sequences in one row (see `echo_hub.learner.batches`).
    """

    def __init__(
        self, adapter: LoraAdapter | WholeModel, device: str, ranks: Ranks = ALONE
    ) -> None:
        self.adapter = adapter
        self.causal: Any = ranks.place(adapter.causal, adapter.weights.values(), device).eval()
        self.sharded = ranks.sharded
        self.weights = adapter.weights
        self.vocab_size: int = self.causal.config.vocab_size
        self.device = self._device = torch.device(device)
        self.width: int = self.causal.config.get_text_config().hidden_size
        self._decoder: torch.nn.Module = self.causal.get_decoder()
        self._check_head()
        self.packs = self._keeps_sequences_apart()

    @classmethod
    def load(
        cls,
        base: Path,
        config: LearnerSection,
        *,
        dtype: Dtype,
        seed: int,
        quantisation: Quantisation = "none",
        ranks: Ranks = ALONE,
    ) -> Policy:
        """Load a base snapshot; a LoRA adapter is fresh, with weights that `seed` determines."""
        check_device(config.device)
        model = load_base(base, dtype, quantisation, device=config.device)
        policy = cls(make_adapter(model, config, seed=seed), config.device, ranks)
        if config.gradient_checkpointing:
            recompute_layers(policy.causal)
        return policy

    def answers(self, sequences: Sequence[PromptAndAnswer]) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward pass: hidden states [N, H] that predict the N answer tokens, and those [N].

        The answers lie end to end, in the order of `sequences`. Of no sequences they are empty, but
        the pass is made: other ranks may wait for this one in each layer.
        """
        if not sequences:
            hidden = self._hidden(torch.zeros((1, 1), dtype=torch.long), None)
            return hidden[0, :0], torch.zeros(0, dtype=torch.long, device=self._device)
        if not all(prompt and answer for prompt, answer in sequences):
            raise LearnerError("a prompt or an answer is empty.")
        lengths = [len(prompt) + len(answer) for prompt, answer in sequences]
        rows = rows_of(lengths, packed=self.packs)
        ids = torch.zeros((len(rows), max(lengths)), dtype=torch.long)
        positions = torch.zeros_like(ids)
        predicts: list[torch.Tensor] = [torch.empty(0)] * len(sequences)
        for number, row in enumerate(rows):
            start = 0
            for i in row:
                (prompt, answer), end = sequences[i], start + lengths[i]
                ids[number, start:end] = torch.as_tensor([*prompt, *answer])
                positions[number, start:end] = torch.arange(lengths[i])
                first = number * ids.shape[1] + start + len(prompt) - 1
                predicts[i] = torch.arange(first, first + len(answer))
                start = end
        if int(ids.min()) < 0 or int(ids.max()) >= self.vocab_size:
            raise LearnerError("a sequence has a token id that is not in the vocabulary.")
        where = torch.cat(predicts)
        hidden = self._hidden(ids, positions if len(rows) < len(sequences) else None)
        targets = ids.flatten()[where + 1].to(self._device)
        return hidden.flatten(0, 1)[where.to(self._device)], targets

    def _hidden(self, ids: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [rows, width, H]. Positions only where a row holds several sequences: the
        masks that keep them apart cost something."""
        more = {} if positions is None else {"position_ids": positions.to(self._device)}
        found = self._decoder(input_ids=ids.to(self._device), use_cache=False, **more)
        hidden: torch.Tensor = found.last_hidden_state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Raw logits, float32 [n, vocabulary], of hidden states [n, H]."""
        logits: torch.Tensor = self.causal.get_output_embeddings()(hidden)
        return logits.float()

    def slices(self, count: int) -> Iterator[slice]:
        """Cuts `count` rows into pieces whose logits may be in memory at once."""
        return slices(count, head_rows(self.vocab_size, self._device))

    def score(self, sequences: Sequence[PromptAndAnswer]) -> TokenScores:
        """Log-probabilities and entropies of all answer tokens, end to end; differentiable."""
        reading = self.read(sequences)
        return TokenScores(reading.logprobs, reading.entropy)

    def logprobs(self, sequences: Sequence[PromptAndAnswer]) -> torch.Tensor:
        """Log-probabilities [N] of all answer tokens, end to end; differentiable."""
        return self.read(sequences).logprobs

    def read(
        self, sequences: Sequence[PromptAndAnswer], places: Sequence[int] | None = None
    ) -> Reading:
        """All answer tokens, or those at the `places` counted over all answers; differentiable."""
        hidden, targets = self.answers(sequences)
        if places is not None:
            hidden, targets = hidden[places], targets[places]
        rows = head_rows(self.vocab_size, self._device)
        return Reading(*token_scores(self.logits, hidden, targets, rows=rows), hidden)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Within the block the policy is the base model: its adapter is switched off."""
        assert isinstance(
            self.adapter, LoraAdapter
        )  # settings that need it without one are refused
        with self.adapter.off():
            yield

    def save_adapter(self, folder: Path) -> None:
        """Write what is trained as a new folder: a PEFT adapter's, or a model's."""
        folder.mkdir()
        weights = {name: weight.detach().cpu() for name, weight in self.weights.items()}
        self.adapter.save(folder, weights)

    def read_adapter(self, folder: Path) -> dict[str, torch.Tensor]:
        """The weights in such a folder; LearnerError unless they could be this policy's."""
        file = folder / self.adapter.file
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
    def _check_head(self) -> None:
        causal = self.causal
        ids = torch.arange(min(8, self.vocab_size), device=self._device)[None]
        whole = causal(input_ids=ids, use_cache=False).logits.float()
        ours = self.logits(self._hidden(ids, None))
        if not torch.allclose(whole, ours, rtol=1e-3, atol=1e-3):
            raise ConfigError(
                f"{type(causal).__name__} changes its logits after its output layer "
                "(soft-capping or scaling), which this learner does not do.",
                fix="Choose another base.path.",
            )

    @torch.no_grad()
    def _keeps_sequences_apart(self) -> bool:
        """Whether two sequences in one row come out as each does alone."""
        if "position_ids" not in inspect.signature(self._decoder.forward).parameters:
            return False
        one = torch.arange(min(6, self.vocab_size))[None]
        positions = torch.arange(one.shape[1]).repeat(2)[None]
        both = self._hidden(torch.cat([one, one.flip(-1)], -1), positions).float()
        alone = self._hidden(torch.cat([one, one.flip(-1)]), None).float()
        apart = (both.reshape(alone.shape) - alone).abs().max()
        return bool(apart <= 0.02 * alone.abs().max())
