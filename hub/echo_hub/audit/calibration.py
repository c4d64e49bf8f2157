"""What honest work looks like to the auditor of a run, measured: the run's `audit.json`.

Promises: thresholds come from one half of the honest groups, and their false-positive rate from the
other half; it is stated per rollout, with an upper confidence bound. A calibration says for which
base, precision and way of sampling it was made, and `check_for` refuses any other. Pure but for
`load` and `save`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from echo_hub.audit.bounds import binomial_upper, poisson_upper
from echo_hub.audit.sequential import EDGES, FLOAT32, SMALL_NOISE, Noise
from echo_hub.learner.messages import Audited
from echo_p2p.errors import ConfigError

CONFIDENCE = 0.95
"""Of the bound on the false-positive rate."""

_RATE_CONFIDENCE = 0.99
_SAFETY = 2.0  # thresholds and rates allow for twice what was seen
_LEAST_MARGIN, _LEAST_DIFFERENCE = 1e-3, 1e-3  # nothing that is worth a lie lies below

Rates = Annotated[tuple[float, ...], Meta(min_length=len(EDGES), max_length=len(EDGES))]
Counts = Annotated[tuple[int, ...], Meta(min_length=len(EDGES), max_length=len(EDGES))]
_Above0 = Annotated[float, Meta(gt=0)]


class Setting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a calibration is for: base (BLAKE3 of its files, in hex), precision, sampling."""

    base: str
    dtype: str
    temperature: float
    top_k: int
    top_p: float


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run's `audit.json`.

    `max_margin` and `max_logprob_difference` are the thresholds of a group. `margins` and
    `differences` are tail counts over all honest tokens, `*_rates` the upper bounds made of them.
    `false_positives` of `judged` rollouts were over the thresholds; `false_positive_rate_upper` is
    the Clopper-Pearson bound of their share.
    """

    setting: Setting
    engine: str
    versions: list[int]
    rollouts: int
    tokens: int
    chance: float
    bits: float
    mismatches: int
    largest_margin: float
    largest_difference: float
    max_margin: _Above0
    max_logprob_difference: _Above0
    margins: Counts
    differences: Counts
    margin_rates: Rates
    difference_rates: Rates
    judged: int
    false_positives: int
    false_positive_rate: float
    false_positive_rate_upper: float

    @property
    def noise(self) -> Noise:
        """For the sequential test."""
        return Noise(self.margin_rates, self.difference_rates)


def calibrate(
    setting: Setting, rollouts: Sequence[Audited], *, engine: str, versions: Sequence[int]
) -> Calibration:
    """Thresholds and rates from the evidence of single honest rollouts, in the order they came."""
    if len(rollouts) < 2:
        raise ConfigError("a calibration needs at least two rollouts.")
    learned, judged = rollouts[::2], rollouts[1::2]
    max_margin = max(_LEAST_MARGIN, _SAFETY * max(found.max_margin for found in learned))
    max_difference = max(
        _LEAST_DIFFERENCE, _SAFETY * max(found.max_logprob_difference for found in learned)
    )
    # a margin comes of noise in two logits, and where no two sums were close it hid that noise
    max_margin = max(max_margin, max_difference)
    false = sum(
        found.max_margin > max_margin or found.max_logprob_difference > max_difference
        for found in judged
    )
    tokens = sum(found.tokens for found in rollouts)
    chance = sum(found.chance for found in rollouts)
    largest = max(found.max_logprob_difference for found in rollouts)
    margins = _total([found.margins for found in rollouts])
    differences = _total([found.differences for found in rollouts])
    return Calibration(
        setting=setting,
        engine=engine,
        versions=sorted(set(versions)),
        rollouts=len(rollouts),
        tokens=tokens,
        chance=chance,
        bits=sum(found.bits for found in rollouts),
        mismatches=sum(found.mismatches for found in rollouts),
        largest_margin=max(found.max_margin for found in rollouts),
        largest_difference=largest,
        max_margin=max_margin,
        max_logprob_difference=max_difference,
        margins=margins,
        differences=differences,
        margin_rates=_margin_rates(margins, chance, largest),
        difference_rates=_rates(differences, float(tokens)),
        judged=len(judged),
        false_positives=false,
        false_positive_rate=false / len(judged),
        false_positive_rate_upper=binomial_upper(false, len(judged), CONFIDENCE),
    )


def check_for(calibration: Calibration, setting: Setting, source: Path) -> None:
    """ConfigError unless a calibration was made for this setting."""
    for name in setting.__struct_fields__:
        has, wanted = getattr(calibration.setting, name), getattr(setting, name)
        if has != wanted:
            raise ConfigError(
                f"{source} was calibrated for {name} {has}, and this run has {wanted}.",
                fix="Calibrate again with `echo-hub calibrate`, or delete the file.",
            )


def save(calibration: Calibration, path: Path) -> None:
    """Write `audit.json`; it appears whole."""
    draft = path.with_suffix(".draft")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
    draft.replace(path)


def load(path: Path) -> Calibration:
    """Read `audit.json`; ConfigError says what is wrong with it."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Calibration)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}.", fix="Calibrate again with `echo-hub calibrate`."
        ) from error


def _total(counts: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*counts, strict=True)))


def _margin_rates(
    counts: Sequence[int], chance: float, largest_difference: float
) -> tuple[float, ...]:
    """What was counted, which takes much chance to say little; less where noise proved small."""
    counted = _rates(counts, chance)
    if largest_difference > SMALL_NOISE:
        return counted
    return tuple(map(min, counted, FLOAT32.margin_rates))


def _rates(counts: Sequence[int], exposure: float) -> tuple[float, ...]:
    return tuple(
        min(1.0, _SAFETY * poisson_upper(count, exposure, _RATE_CONFIDENCE)) for count in counts
    )
