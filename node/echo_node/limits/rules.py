"""Whether a node may work now. Pure: limits, readings and the time come in, a decision goes out.

What is not known (a sensor that this computer does not have) is decided so:

| reading | unknown means |
|---|---|
| battery | mains: a computer without a battery has no such sensor |
| time without input | in use: only `only_when_idle` asks, and a guess must disturb nobody |
| other GPU programs | none: there is no card, or none that can be asked |
| temperature | cool: the machine protects itself, and only some say how warm they are |
| running programs | one of those listed: only `pause_for` asks |

After too warm it has to get `COOLER` degrees cooler, so that a pause is not a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from echo_node.limits.amounts import format_size
from echo_node.limits.hours import Hours, next_midnight, next_month
from echo_node.limits.settings import Limits, size_or_none

COOLER = 5.0

Code = Literal[
    "asked", "hours", "battery", "in_use", "program", "gpu_in_use", "cpu_warm", "gpu_warm",
    "data_day", "data_month", "ram", "gpu_memory", "change",
]  # fmt: skip

AT_ONCE: frozenset[Code] = frozenset(
    {"in_use", "program", "gpu_in_use", "cpu_warm", "gpu_warm", "ram", "gpu_memory"}
)
"""What does not wait for work that is nearly done: somebody or something needs the machine now."""
NO_TRAFFIC: frozenset[Code] = frozenset({"data_day", "data_month"})


@dataclass(frozen=True)
class Readings:
    """What the sensors say; None is unknown. Bytes and temperatures are of now."""

    on_battery: bool | None = None
    idle_s: float | None = None
    cpu_temperature: float | None = None
    gpu_temperature: float | None = None
    gpu_load: float | None = None
    gpu_programs: tuple[str, ...] | None = None
    programs: tuple[str, ...] | None = None
    data_today: int = 0
    data_this_month: int = 0


class Reason(msgspec.Struct, frozen=True):
    """One reason for a pause; `until` in Unix seconds, None if nobody can know."""

    code: Code
    sentence: str
    until: float | None = None


@dataclass(frozen=True)
class Hold:
    """A pause that was asked for, or that the node took for itself; `until` None: until resumed."""

    code: Code
    sentence: str
    until: float | None = None


@dataclass(frozen=True)
class Decision:
    """May run if there is no reason against it."""

    reasons: tuple[Reason, ...] = ()

    @property
    def runs(self) -> bool:
        return not self.reasons

    @property
    def codes(self) -> frozenset[Code]:
        return frozenset(reason.code for reason in self.reasons)

    @property
    def at_once(self) -> bool:
        """Whether running work is returned without waiting for it."""
        return bool(self.codes & AT_ONCE)

    @property
    def until(self) -> float | None:
        """When it ends at the earliest; None if that is not known for one of the reasons."""
        ends = [reason.until for reason in self.reasons]
        return None if None in ends or not ends else max(end for end in ends if end is not None)

    @property
    def sentence(self) -> str:
        return "; ".join(reason.sentence for reason in self.reasons)


RUNS = Decision()


def decide(
    limits: Limits,
    readings: Readings,
    now: float,
    *,
    holds: Sequence[Hold] = (),
    before: Decision = RUNS,
) -> Decision:
    """All reasons against working now (Unix seconds); `before` is the last decision."""
    found = [
        Reason(hold.code, hold.sentence, hold.until)
        for hold in holds
        if hold.until is None or hold.until > now
    ]
    found += _by_the_clock(limits, readings, now)
    found += _by_who_needs_it(limits, readings)
    found += _by_warmth(limits, readings, before)
    return Decision(tuple(found))


def _by_the_clock(limits: Limits, readings: Readings, now: float) -> list[Reason]:
    found = []
    hours = Hours(limits.hours, limits.zone)
    if not hours.open_at(now):
        found.append(Reason("hours", "outside of your hours", hours.next_opening(now)))
    day, month = size_or_none(limits.data_per_day), size_or_none(limits.data_per_month)
    if day is not None and readings.data_today >= day:
        used = f"the {format_size(day)} of data for today are used up"
        found.append(Reason("data_day", used, next_midnight(now, limits.zone)))
    if month is not None and readings.data_this_month >= month:
        used = f"the {format_size(month)} of data for this month are used up"
        found.append(Reason("data_month", used, next_month(now, limits.zone)))
    return found


def _by_who_needs_it(limits: Limits, readings: Readings) -> list[Reason]:
    found = []
    if readings.on_battery and not limits.on_battery:
        found.append(Reason("battery", "on battery"))
    if limits.only_when_idle:
        after_s = limits.idle_after * 60
        if readings.idle_s is None:
            found.append(Reason("in_use", "it cannot be told here whether the computer is in use"))
        elif readings.idle_s < after_s:
            found.append(Reason("in_use", "the computer is in use"))
    if limits.pause_for:
        if readings.programs is None:
            found.append(Reason("program", "it cannot be told here which programs run"))
        elif readings.programs:
            found.append(Reason("program", f"{_few(readings.programs)} is running"))
    if readings.gpu_programs and not limits.beside_gpu_programs:
        found.append(Reason("gpu_in_use", f"{_few(readings.gpu_programs)} uses the graphics card"))
    return found


def _few(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} more)"


def _by_warmth(limits: Limits, readings: Readings, before: Decision) -> list[Reason]:
    found = []
    kinds: tuple[tuple[Code, str, float | None, float], ...] = (
        ("cpu_warm", "processor", readings.cpu_temperature, limits.max_cpu_temperature),
        ("gpu_warm", "graphics card", readings.gpu_temperature, limits.max_gpu_temperature),
    )
    for code, what, degrees, most in kinds:
        bound = most - COOLER if code in before.codes else most
        if degrees is not None and degrees > bound:
            sentence = f"the {what} has {degrees:.0f} °C, the limit is {most:.0f}"
            found.append(Reason(code, sentence))
    return found
