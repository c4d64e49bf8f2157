"""`guess-number`: find a number in a few guesses, told each time on which side it lies.

The smallest multi-turn task. The reward is 1 for finding it, and for not finding it what share of
the numbers the best guess rules out beyond itself, up to a half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from echo_hub.tasks.base import Prompt, Split, Transcript, Turns
from echo_hub.tasks.splits import rng_of
from echo_p2p.environments.guess_number import guess_of
from echo_p2p.errors import ConfigError

_MOST = 1000


class GuessNumber:
    """Options: `high`, the highest number (9); `turns`, guesses allowed (3).

    All splits ask for the same numbers, since there are so few.
    """

    environments = ("guess-number/1",)

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        given = {"high": 9, "turns": 3, **options}
        if sorted(given) != ["high", "turns"]:
            raise ConfigError(f"the task 'guess-number' has the options high and turns: {given}.")
        for name, most in (("high", _MOST), ("turns", 64)):
            value = given[name]
            if type(value) is not int or not 2 <= value <= most:
                raise ConfigError(f"task.options.{name} = {value!r} is no number from 2 to {most}.")
        self._high: int = given["high"]
        self._turns: int = given["turns"]
        self._seed = seed

    def prompt(self, split: Split, index: int) -> Prompt:
        number = rng_of(self._seed, split, index).randint(1, self._high)
        state = {"number": number, "high": self._high}
        turns = Turns(self._turns, self.environments[0], state)
        return Prompt(f"a number from 1 to {self._high}:", state, turns)

    def reward(self, prompt: Prompt, transcript: Transcript) -> float:
        number, high = prompt.data["number"], prompt.data["high"]
        guesses = [guess_of(answer) for answer in transcript.answers]
        inside = [guess for guess in guesses if guess is not None and 1 <= guess <= high]
        if not inside:
            return 0.0
        nearest = min(abs(guess - number) for guess in inside)
        return 1.0 if nearest == 0 else 0.5 * (1.0 - nearest / high)
