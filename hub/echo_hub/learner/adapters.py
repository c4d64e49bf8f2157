"""What is trained of a base model: a LoRA adapter, or (`adapter = "none"`) all of its weights.

Promises: what is made here, every engine of the swarm can load; what one of them could not is
refused when the learner starts, in a sentence. A version's folder is a normal PEFT adapter folder,
or a normal model folder: JSON and safetensors, and no path of the hub's machine in either.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from transformers import PreTrainedModel

from echo_hub.config import LearnerSection
from echo_hub.learner.fused_lora import fuse_lora
from echo_p2p.errors import ConfigError, LearnerError

_NAME = "default"
_CHANGED = (
    "base.path and, of [learner], adapter, rank, alpha, rslora and target_modules stay as they "
    "were when a run began."
)


class LoraAdapter:
    """A LoRA adapter in float32 on a base whose weights never change.

    `weights` are the adapter's, by their names in its file; `causal` is the base with the adapter
    in its forward path.
    """

    file: ClassVar[str] = "adapter_model.safetensors"

    def __init__(self, model: PreTrainedModel, config: LoraConfig) -> None:
        with warnings.catch_warnings():  # of an attribute of transformers that PEFT still reads
            warnings.simplefilter("ignore", FutureWarning)
            wrapped: Any = get_peft_model(model, config)
        # PEFT notes the snapshot's path; but this is published, and a path is nobody's business
        config.base_model_name_or_path = Path(model.config.name_or_path).name
        self._config = config
        self._wrapped = wrapped
        self.causal: Any = wrapped.get_base_model()
        fuse_lora(self.causal)
        self.weights: dict[str, torch.nn.Parameter] = {
            name.replace(f".{_NAME}.", "."): parameter
            for name, parameter in wrapped.named_parameters()
            if parameter.requires_grad
        }

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within the block the model is the base."""
        with self._wrapped.disable_adapter():
            yield

    def save(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Write these weights as PEFT does."""
        save_file(tensors, folder / self.file, metadata={"format": "pt"})
        self._config.inference_mode = True
        self._config.save_pretrained(str(folder))


class WholeModel:
    """All weights of a small model, in float32, by their names in its snapshot's file."""

    file: ClassVar[str] = "model.safetensors"

    def __init__(self, model: PreTrainedModel) -> None:
        self.causal: Any = model.float().requires_grad_(True)
        self.weights: dict[str, torch.nn.Parameter] = dict(model.named_parameters())

    def save(self, folder: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Write these weights as a model folder that transformers loads."""
        save_file(tensors, folder / self.file, metadata={"format": "pt"})
        config = copy.deepcopy(self.causal.config)
        config.dtype = torch.float32
        config.name_or_path = ""
        config.save_pretrained(str(folder))


def make_adapter(
    model: PreTrainedModel, config: LearnerSection, *, seed: int
) -> LoraAdapter | WholeModel:
    """What `[learner]` asks for, on a freshly loaded model. `seed` determines a LoRA's weights."""
    if config.adapter == "none":
        return WholeModel(model)
    targets = resolve_targets(model, config.target_modules)
    torch.manual_seed(seed)
    return LoraAdapter(
        model,
        LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,
            lora_dropout=0.0,
            use_rslora=config.rslora,
            target_modules=targets,
            task_type="CAUSAL_LM",
        ),
    )


def resolve_targets(model: PreTrainedModel, targets: Sequence[str] | str) -> list[str]:
    """The names that PEFT and every engine match as ends of module names, or as whole ones.

    Args:
        targets: such names; or `all-linear`, every linear layer but the output layer; or a regular
            expression that the whole name of a layer matches. It is resolved here, so that no node
            ever runs an expression that came over the network.

    Raises:
        ConfigError: a name or an expression matches no linear layer, or the output layer.
    """
    output = model.get_output_embeddings()
    linear = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not output
    ]
    ends = sorted({name.rpartition(".")[2] for name in linear})
    there = f"It has: {', '.join(ends)}."
    if targets == "all-linear":
        return ends
    if isinstance(targets, str):
        found = [name for name in linear if _matches(targets, name)]
        if not found:
            raise ConfigError(
                f"learner.target_modules: no linear layer of the base model matches {targets!r}.",
                fix=f"{there} The expression must match a whole name, as {linear[0]}.",
            )
        return found
    missing = sorted(
        one for one in targets if not any(f".{name}".endswith(f".{one}") for name in linear)
    )
    if missing:
        raise ConfigError(
            f"learner.target_modules: the base model has no linear layers named "
            f"{', '.join(missing)}.",
            fix=f"{there} (An adapter on the output layer is not offered.)",
        )
    return list(targets)


def _matches(expression: str, name: str) -> bool:
    try:
        return re.fullmatch(expression, name) is not None
    except re.error as error:
        raise ConfigError(
            f"learner.target_modules = {expression!r} is no regular expression: {error}.",
            fix='Give a list of names, "all-linear", or an expression.',
        ) from error


def lora_layers(model: torch.nn.Module) -> list[tuple[str, Any]]:
    """The layers that an adapter is on, by name."""
    return [(n, module) for n, module in model.named_modules() if isinstance(module, LoraLayer)]


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
