"""All that an update changes, kept in memory and on disk so that nothing of it is ever lost.

Promises: a checkpoint folder appears whole or not at all, is read only if it is what was written,
and a learner that takes it over goes on bit for bit as the one that wrote it would have (same
machine, same threads). `TrainState.restore` puts everything back bit for bit.

A checkpoint folder holds

- `adapter/`: a PEFT adapter folder, the part that is published;
- `state.safetensors`: AdamW's moments and step, random number generators, whatever else was
  registered as a tensor;
- `state.json`: the version, facts in plain JSON (each under its owner's name), and the SHA-256 of
  every other file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from echo_hub.folders import let_all_read, whole_folder
from echo_hub.learner.adapters import check_tensors
from echo_hub.learner.checkpoint_meta import FORMAT, META, Meta
from echo_hub.learner.policy import Policy
from echo_p2p.errors import LearnerError

_MOMENTS = ("exp_avg", "exp_avg_sq")
_STATE = "state.safetensors"
_NO_WAY_BACK = (
    "Restore this folder from a backup. The folders beside it hold the versions before it, but a "
    "run does not go back: merge the adapter/ of one into the base model, and start a new run with "
    "that as its base.path."
)


@dataclass(frozen=True)
class Snapshot:
    """The whole state at one moment. Nobody else holds its tensors."""

    version: int
    tensors: Mapping[str, torch.Tensor]
    facts: Mapping[str, Any]


class TrainState:
    """A policy, its optimiser, and all else that an update changes.

    `version`: updates so far. `facts`: plain JSON values by their owner's name; replaced, never
    changed in place. `extra`: further tensors by name, changed in place: all of them are there
    before the first update, so that a checkpoint has the same names always.
    """

    def __init__(self, policy: Policy, optimizer: torch.optim.AdamW, *, device: str) -> None:
        self.version = 0
        self.facts: dict[str, Any] = {}
        self.extra: dict[str, torch.Tensor] = {}
        self.beside: Callable[[Path], None] | None = None
        """Writes what else belongs beside the weights, given their folder."""
        self._policy = policy
        self._optimizer = optimizer
        self._device = torch.device(device)
        for weight in policy.weights.values():  # made now, so that saving has no special case
            optimizer.state[weight] = {
                "step": torch.zeros((), device=weight.device),
                **{moment: torch.zeros_like(weight) for moment in _MOMENTS},
            }

    def copy(self) -> Snapshot:
        """The state now, to be put back by `restore`."""
        tensors = {name: tensor.clone() for name, tensor in self._tensors().items()}
        return Snapshot(self.version, tensors | self._generators(), dict(self.facts))

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Make everything as it was."""
        for name, tensor in self._tensors().items():
            tensor.copy_(snapshot.tensors[name])
        for weight in self._policy.weights.values():
            self._optimizer.state[weight]["step"].copy_(snapshot.tensors["step"])
        self._set_generators(snapshot.tensors)
        self.facts = dict(snapshot.facts)
        self.version = snapshot.version

    def save(self, out: Path) -> None:
        """Write a checkpoint folder, whole or not at all."""
        adapter = self._policy.weights.keys()
        rest = {name: t.cpu() for name, t in self._tensors().items() if name not in adapter}
        try:
            with whole_folder(out) as draft:
                self._policy.save_adapter(draft / "adapter")
                if self.beside is not None:
                    self.beside(draft / "adapter")
                save_file(rest | self._generators(), draft / _STATE)
                meta = Meta(FORMAT, self.version, self.facts, _digests(draft))
                (draft / META).write_bytes(msgspec.json.format(msgspec.json.encode(meta)))
                let_all_read(draft)
        except OSError as error:
            raise LearnerError(f"cannot write the checkpoint {out}: {error}.") from error

    def resume(self, checkpoint: Path) -> None:
        """Take over the state in a checkpoint folder; LearnerError if it is not one of this run."""
        try:
            self.restore(self.read(checkpoint))
        except LearnerError as error:
            raise LearnerError(error.message, fix=error.fix or _NO_WAY_BACK) from error

    def read(self, checkpoint: Path) -> Snapshot:
        """What a checkpoint folder holds; LearnerError if it could not be this learner's."""
        try:
            meta = msgspec.json.decode((checkpoint / META).read_bytes(), type=Meta)
            if meta.format != FORMAT:
                raise LearnerError(
                    f"the checkpoint {checkpoint} has format {meta.format}; this program knows "
                    f"{FORMAT}.",
                    fix="Serve the run with the version of echo-p2p that made it.",
                )
            damaged = {name for name, made in _digests(checkpoint).items() ^ meta.sha256.items()}
            if damaged:
                raise LearnerError(
                    f"the checkpoint {checkpoint} is damaged: {min(damaged)} is not as written."
                )
            tensors = load_file(checkpoint / _STATE, device=str(self._device))
        except (OSError, SafetensorError, msgspec.DecodeError) as error:
            raise LearnerError(f"cannot read the checkpoint {checkpoint}: {error}.") from error
        generators = {name: tensors.pop(name).cpu() for name in [*tensors] if _is_generator(name)}
        if "rng.cpu" not in generators:
            raise LearnerError(f"the checkpoint {checkpoint} has no state of a generator.")
        tensors |= self._policy.read_adapter(checkpoint / "adapter")
        check_tensors(tensors, self._tensors(), source=str(checkpoint))
        return Snapshot(meta.version, tensors | generators, meta.facts)

    def _tensors(self) -> dict[str, torch.Tensor]:
        """All that an update changes, by name. The tensors themselves, not copies."""
        state: dict[str, torch.Tensor] = {n: w.data for n, w in self._policy.weights.items()}
        for name, weight in self._policy.weights.items():
            slots = self._optimizer.state[weight]
            state |= {f"{moment}.{name}": slots[moment] for moment in _MOMENTS}
            state["step"] = slots["step"]  # the same for every weight
        return state | {f"extra.{name}": tensor for name, tensor in self.extra.items()}

    def _generators(self) -> dict[str, torch.Tensor]:
        """States of torch's generators, the only source of chance in a learner: of the CPU, and of
        the device if that is another one."""
        states = {"rng.cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            states["rng.cuda"] = torch.cuda.get_rng_state(self._device)
        return states

    def _set_generators(self, tensors: Mapping[str, torch.Tensor]) -> None:
        torch.set_rng_state(tensors["rng.cpu"])
        if self._device.type == "cuda" and "rng.cuda" in tensors:  # else written on another device
            torch.cuda.set_rng_state(tensors["rng.cuda"], self._device)


def _is_generator(name: str) -> bool:
    return name.startswith("rng.")


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below `folder` but `state.json`, by its path there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / META:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[path.relative_to(folder).as_posix()] = digest
    return found
