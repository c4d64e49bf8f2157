"""What a feed holds, told to callbacks in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from echo_hub.run_facts import resolve_base
from echo_hub.sdk.events import NodeEvent, Publication, Rollout
from echo_hub.sdk.watch import ScoredRollouts, Told, Wanted
from echo_hub.tokens import Tokenizer
from echo_hub.update_facts import UpdateFacts
from echo_p2p.identity import peer_id_of


@dataclass
class Heard:
    """Callbacks, each optional. `base` is the base model, whose tokenizer is used."""

    on_update: Callable[[UpdateFacts], object] | None
    on_publish: Callable[[Publication], object] | None
    on_rollout: Callable[[Rollout], object] | None
    on_node: Callable[[NodeEvent], object] | None
    base: str

    @property
    def wanted(self) -> Wanted:
        """What the hub should tell, beside updates."""
        return Wanted(
            publications=self.on_publish is not None,
            rollouts=self.on_rollout is not None,
            nodes=self.on_node is not None,
        )

    def hear(self, told: Told) -> UpdateFacts | None:
        """Call whom it concerns; the update, if it is one."""
        match told:
            case UpdateFacts():
                if self.on_update is not None:
                    self.on_update(told)
                return told
            case Publication():
                if self.on_publish is not None:
                    self.on_publish(told)
            case NodeEvent():
                if self.on_node is not None:
                    self.on_node(told)
            case ScoredRollouts():
                if self.on_rollout is not None:
                    for rollout in self._rollouts(told):
                        self.on_rollout(rollout)
        return None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.load(resolve_base(self.base))

    def _rollouts(self, told: ScoredRollouts) -> list[Rollout]:
        group, lease = told.group, told.group.lease
        prompt = self._tokenizer.decode(group.prompt)
        return [
            Rollout(
                trace=f"{lease.lease_id.hex()}.{number}",
                node=peer_id_of(lease.node),
                version=group.version,
                split=lease.split,
                prompt_index=lease.index,
                prompt=prompt,
                answer=self._tokenizer.decode(one.tokens),
                tokens=len(one.tokens),
                reward=reward,
            )
            for number, (one, reward) in enumerate(zip(group.rollouts, told.rewards, strict=True))
        ]
