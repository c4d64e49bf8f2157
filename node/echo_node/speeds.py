"""How fast this machine generates: measured results, kept by what they depend on.

One result belongs to one model, engine release, place, driver and kind of work (`Subject`): any of
them changed, it is measured again. The file is a cache: one that cannot be read is as good as none.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from echo_node.fit import Plan
from echo_node.hardware.base import Machine
from echo_p2p.files import write_whole

MOST_KEPT = 64


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. `model` names the base's config and weights; `prompt` and `new_tokens` are
    the lengths of the work, `driver` that of the card, or the CPU's vector extensions.
    """

    model: str
    engine: str
    release: str
    place: str
    driver: str
    dtype: str
    sequences: int
    threads: int
    prompt: int
    new_tokens: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """A result: tokens sampled a second, by `subject.sequences` answers at a time; when (s)."""

    subject: Subject
    tokens_s: float
    measured_at: float

    @property
    def sentence(self) -> str:
        """For people."""
        about = self.subject
        answers = "1 answer" if about.sequences == 1 else f"{about.sequences} answers"
        return (
            f"{self.tokens_s:,.0f} tokens/s: {about.engine} {about.release} on {about.place} in "
            f"{about.dtype}, {answers} of {about.new_tokens} tokens at a time after prompts of "
            f"{about.prompt}."
        )


def subject_of(
    plan: Plan,
    machine: Machine,
    *,
    model: str,
    release: str,
    threads: int,
    lengths: tuple[int, int],
) -> Subject:
    """What a plan's engine would be measured at; `lengths` of prompt and answer in tokens."""
    card = next((one for one in machine.accelerators if plan.place.endswith(one.name)), None)
    return Subject(
        model=model,
        engine=plan.engine,
        release=release,
        place=plan.place if card else machine.cpu.name,
        driver=card.driver if card else " ".join(machine.cpu.vectors),
        dtype=plan.dtype,
        sequences=plan.max_sequences,
        threads=threads,
        prompt=lengths[0],
        new_tokens=lengths[1],
    )


def read_speeds(file: Path) -> list[Speed]:
    """What is kept, oldest first."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Speed])
    except (OSError, msgspec.DecodeError):  # also of an older form: measure again
        return []


def find(speeds: list[Speed], subject: Subject) -> Speed | None:
    """The result for this subject, if there is one."""
    return next((one for one in reversed(speeds) if one.subject == subject), None)


def keep(file: Path, speed: Speed) -> None:
    """Add a result, in place of an older one of the same subject."""
    others = [one for one in read_speeds(file) if one.subject != speed.subject]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, msgspec.json.encode([*others, speed][-MOST_KEPT:]))
