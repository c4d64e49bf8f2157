"""`textarena:<game>`: any game for one player of the textarena package, played at the hub.

The package's games keep state and draw from Python's global randomness. Here a game is begun anew
for every reply, from the seed in its prompt, and played again up to where it is: so a reply is a
function of prompt and turns, and a scorer process that died is replaced without loss. The state of
global randomness is put back afterwards. The reward is the game's own, and 0 for one not finished.
"""

from __future__ import annotations

import difflib
import json
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split, Transcript, Turns
from echo_hub.tasks.options import read_options
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.errors import ConfigError
from echo_p2p.toml import Strict

_ADDRESS = re.compile(r"0x[0-9a-f]+")
_RAW = "-raw"  # without the package's own wrappers, which repeat the whole dialogue every turn


class TextArenaOptions(Strict):
    turns: Annotated[int, Field(ge=1, le=64)] = 20
    """Most turns of the policy; the game may end sooner."""
    game: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the game, instead of those that its id stands for."""


class TextArena:
    """One game. Seeds whose games begin alike are in the same split."""

    environments: tuple[str, ...] = ()

    def __init__(self, game: str, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options(f"textarena:{game}", options, TextArenaOptions)
        self._arena = _package()
        self._seed = seed
        self._id = _known(game)
        try:
            self._begun(0)
        except Exception as error:  # games raise whatever they like
            raise ConfigError(
                f"textarena's {game} cannot be played alone and offline, with the arguments "
                f"{self._options.game}: {type(error).__name__}: {error}."
            ) from error

    def prompt(self, split: Split, index: int) -> Prompt:
        def instance(attempt: int) -> tuple[str, tuple[int, str]]:
            number = rng_of(self._seed, split, index, attempt).getrandbits(31)
            env, text = self._begun(number)
            state = json.dumps(env.state.game_state, sort_keys=True, default=str)
            return _ADDRESS.sub("", state), (number, text)

        _, (number, text) = draw(split, instance)
        return Prompt(text, {"seed": number}, Turns(self._options.turns))

    def reply(self, prompt: Prompt, answers: Sequence[str]) -> str | None:
        env, said = self._played(prompt.data["seed"], answers)
        return None if env.state.done else said or "\n"

    def reward(self, prompt: Prompt, transcript: Transcript) -> float:
        env, _ = self._played(prompt.data["seed"], transcript.answers)
        return float((env.state.rewards or {}).get(0, 0.0)) if env.state.done else 0.0

    def _begun(self, seed: int) -> tuple[Any, str]:
        return self._played(seed, ())

    def _played(self, seed: int, answers: Sequence[str]) -> tuple[Any, str]:
        """The game after these turns, and what it said after the last."""
        with _own_randomness(seed):
            env = self._arena.make(self._id, **self._options.game)
            env.reset(num_players=1, seed=seed)
            said = _heard(env)
            for answer in answers:
                if env.state.done:
                    break
                env.step(action=answer)
                said = _heard(env)
        return env, said


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Randomness from `seed` for a while; what games print goes where it does no harm."""
    before = random.getstate()
    random.seed(seed)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        random.setstate(before)


def _heard(env: Any) -> str:
    """What the game has said since it was last asked, without the policy's own turns."""
    _, messages = env.get_observation()
    if isinstance(messages, str):
        return messages
    return "".join(f"{text.strip()}\n" for speaker, text, _ in messages if speaker == -1)


def _package() -> Any:
    try:
        import textarena
    except ImportError as error:
        raise ConfigError(
            "the package textarena is not installed.",
            fix="Install the extra that has it: pip install 'echo-p2p[envs]'",
        ) from error
    return textarena


def _known(game: str) -> str:
    from textarena.envs.registration import ENV_REGISTRY

    if f"{game}{_RAW}" in ENV_REGISTRY:
        return f"{game}{_RAW}"
    if game in ENV_REGISTRY:
        return game
    near = difflib.get_close_matches(game, ENV_REGISTRY, n=5, cutoff=0.5)
    raise ConfigError(
        f"textarena has no game {game!r}.",
        fix=f"Near it: {', '.join(near)}." if near else "Games are named as Mastermind-v0.",
    )
