"""The learner's process: `python -m echo_hub.learner.process`, spoken to by `learner.client`.

One command at a time, one answer each. A command that cannot be carried out is answered with
`Failed` and changes nothing; whatever nobody foresaw ends the process, and its parent hears of it.
If the hub dies the learner ends too, even in mid-update (`ParentPipe`): a hub that was started
again has a learner of its own by then, and two must not write the same checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from echo_hub.config import RunConfig
from echo_hub.learner.messages import (
    Answer,
    AuditedAll,
    Audits,
    Command,
    Failed,
    RollBack,
    Start,
    Started,
    Trained,
)
from echo_hub.run_facts import LONGEST_PROMPT
from echo_p2p.errors import ConfigError, EchoError, LearnerError, ProcessError, UpdateRefusedError
from echo_p2p.pipes import ParentPipe

if TYPE_CHECKING:
    from echo_hub.audit.derive import Auditor
    from echo_hub.learner.distributed import Ranks
    from echo_hub.learner.policy import Policy
    from echo_hub.learner.seats import Seat
    from echo_hub.learner.trainer import Trainer

_COMMAND: Any = Command  # a union, which `type[T]` has no room for


class Server:
    """Carries out commands; torch is first imported by `Start`."""

    def __init__(self) -> None:
        self.seat: Seat | None = None  # which of several ranks this is
        self._trainer: Trainer | None = None
        self._auditor: Auditor | None = None
        self._started: Start | None = None

    @property
    def sharded(self) -> bool:
        """Whether the base lies in pieces on several ranks."""
        return self._trainer is not None and self._trainer.policy.sharded

    def answer(self, command: Command) -> Answer:
        try:
            return self._carry_out(command)
        except ProcessError:  # of another rank: no state can be relied on
            raise
        except UpdateRefusedError as error:
            return Failed(message=error.message, why=error.why, back_to=error.back_to)
        except EchoError as error:
            return _failed(error)

    def _carry_out(self, command: Command) -> Answer:
        if isinstance(command, Start):
            if self._trainer is not None:
                raise LearnerError("the learner was started before.")
            self._trainer, self._started = _start(command, self.seat), command
            weights = self._trainer.policy.weights.values()
            return Started(
                version=self._trainer.version,
                trainable=sum(weight.numel() for weight in weights),
                batch=self._trainer.state.facts.get("batch", []),
            )
        trainer = self._trainer
        if trainer is None:
            raise LearnerError("the learner was not started.")
        if isinstance(command, Audits):
            return self._audit(trainer, command)
        if command.version != trainer.version:
            raise LearnerError(
                f"an update of version {command.version} was asked for, "
                f"but the learner is at version {trainer.version}."
            )
        out = Path(command.out)
        if isinstance(command, RollBack):
            trainer.roll_back(Path(command.checkpoint), out)
            return Trained(version=trainer.version, metrics={})
        metrics = trainer.train(
            command.groups,
            out,
            batch=command.batch,
            blank=command.blank,
            blank_arms=command.blank_arms,
            forget=command.forget,
        )
        return Trained(version=trainer.version, metrics=metrics)

    def _audit(self, trainer: Trainer, command: Audits) -> Answer:
        from echo_hub.audit.derive import Auditor

        if self._auditor is None:
            self._auditor = Auditor(_audit_policy(trainer, self._started))
        return AuditedAll(
            [
                _failed(found) if isinstance(found, LearnerError) else found
                for found in self._auditor.derive_all(command.groups)
            ]
        )


def _failed(error: EchoError) -> Failed:
    settings = isinstance(error, ConfigError)
    return Failed(message=error.message, fix=error.fix, settings=settings)


def _start(command: Start, seat: Seat | None) -> Trainer:
    import torch

    from echo_hub.learner import distributed
    from echo_hub.learner.policy import Policy
    from echo_hub.learner.trainer import Trainer

    config = RunConfig.model_validate_json(command.config)
    if config.learner.threads:
        torch.set_num_threads(config.learner.threads)
    ranks = distributed.Ranks()
    if seat is not None:
        ranks = distributed.join(seat, config.learner)
        device = distributed.device_of(seat, config.learner.device)
        learner = config.learner.model_copy(update={"device": device})
        config = config.model_copy(update={"learner": learner})
    ranks.sharded = _check_memory(Path(command.base), config, ranks)
    policy = Policy.load(
        Path(command.base),
        config.learner,
        dtype=config.base.dtype,
        seed=config.run.seed,
        quantisation=config.base.quantisation,
        ranks=ranks,
    )
    trainer = Trainer(policy, config, ranks, canary=command.canary)
    if command.checkpoint is None:
        _check_nothing_is_lost(Path(command.out).parent, None)
        trainer.save(Path(command.out))
    else:
        trainer.resume(Path(command.checkpoint))
        _check_nothing_is_lost(Path(command.checkpoint).parent, trainer.version)
    return trainer


def _audit_policy(trainer: Trainer, start: Start | None) -> Policy:
    """What audits read with: the learner's own base, or, if that has 4 bits only, the whole one."""
    from echo_hub.learner.policy import Policy

    assert start is not None
    config = RunConfig.model_validate_json(start.config)
    if config.base.quantisation == "none":
        return trainer.policy
    on_cpu = config.learner.model_copy(update={"device": "cpu"})
    return Policy.load(Path(start.base), on_cpu, dtype=config.base.dtype, seed=config.run.seed)


def _check_memory(base: Path, config: RunConfig, ranks: Ranks) -> bool:
    """ConfigError if this learner cannot fit into its device; nothing of the base is loaded yet.

    Returns whether the base is to be sharded over the ranks: `auto` does if it would not fit whole.
    """
    import torch

    from echo_hub.learner.device import check_device, memory_of
    from echo_hub.learner.fit import check_fit, need_of, shape_of
    from echo_hub.learner.heads import head_rows

    check_device(config.learner.device)
    device, shape = torch.device(config.learner.device), shape_of(base)
    sharded = ranks.size > 1 and config.learner.sharding == "shard"
    whole_only = config.base.quantisation != "none" or config.learner.adapter == "none"
    if sharded and whole_only:
        raise ConfigError(
            'learner.sharding = "shard" is for a base that stays as it is, in its full width.',
            fix='Set it to "replicate"; or adapter = "lora" and base.quantisation = "none".',
        )
    if shape is None:  # nothing can be said
        return sharded
    memory = memory_of(device) // (ranks.size if device.type == "cpu" else 1)
    longest = LONGEST_PROMPT + config.sampling.max_new_tokens
    logits = head_rows(shape.vocabulary, device) * shape.vocabulary
    if config.learner.sharding == "auto" and ranks.size > 1 and not whole_only:
        whole = need_of(shape, config, longest=longest, logits=logits)
        sharded = ranks.total(whole.total > memory)[0] > 0  # of any rank: all do alike
    check_fit(
        shape,
        config,
        memory=memory,
        where=str(device),
        longest=longest,
        logits=logits,
        shards=ranks.size if sharded else 1,
    )
    return sharded


def _check_nothing_is_lost(checkpoints: Path, version: int | None) -> None:
    """There can be no version after the next one, which a kill may leave before it counts; else the
    ledger is older than its checkpoints, and versions would be made a second time."""
    last = max((int(folder.name[1:]) for folder in checkpoints.glob("v[0-9]*")), default=0)
    if last > (0 if version is None else version + 1):
        knows = "no version" if version is None else f"no version after {version}"
        raise LearnerError(
            f"the run's ledger knows {knows}, but {checkpoints} holds v{last:06d}.",
            fix="Restore ledger.sqlite from a backup, or, to begin anew, move checkpoints/ away.",
        )


def main() -> None:
    from echo_hub.learner.ranks import Leader

    pipe = ParentPipe()
    leader = Leader()
    while (command := pipe.receive(_COMMAND)) is not None:
        pipe.send(leader.answer(command))
    leader.close()


if __name__ == "__main__":
    main()
