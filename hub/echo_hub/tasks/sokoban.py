"""`sokoban`: push the boxes onto the goals, in up to four turns of up to 25 moves.

Boards can be solved by construction (`sokoban_rooms`); the level says how large they are and in how
few pushes. The reward is 1 if the last board is solved. reasoning-gym has a Sokoban too, in one
turn and with a board's size but not its difficulty to choose; it is at `reasoning-gym:sokoban`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field

from echo_hub.tasks.base import Prompt, Split, Transcript, Turns
from echo_hub.tasks.options import WordedOptions, read_options
from echo_hub.tasks.sokoban_rooms import Room, Shape, canonical, make_room
from echo_hub.tasks.splits import draw, rng_of
from echo_p2p.environments.sokoban import MAX_MOVES, MAX_TURNS, Board, position

LEVELS = (
    Shape(size=5, boxes=1, walls=1, pushes=(1, 2)),
    Shape(size=6, boxes=1, walls=2, pushes=(1, 4)),
    Shape(size=6, boxes=2, walls=2, pushes=(2, 5)),
    Shape(size=6, boxes=2, walls=3, pushes=(5, 12)),
    Shape(size=7, boxes=3, walls=4, pushes=(6, 16)),
)
"""Level 1 is the first. A room without boards as far away as the most pushes gives its farthest."""
DEFAULT_LEVEL = 3

_BOARDS_OF_A_ROOM = 12  # draws from one room, looking for a board of the split
_ROOMS_KEPT = 256

RULES = f"""\
Solve this Sokoban board: push every box onto a goal.
# wall, _ floor, . goal, $ box, * box on a goal, @ you, + you on a goal.
You move Up, Down, Left or Right, and push a box by moving against it; you cannot pull, and you \
cannot push two boxes at once or into a wall.
Give up to {MAX_MOVES} moves like this: <answer>Right || Up</answer>. If that does not solve the \
board you are shown it again; you have {MAX_TURNS} turns.
"""


class SokobanOptions(WordedOptions):
    level: Annotated[int, Field(ge=1, le=len(LEVELS))] = DEFAULT_LEVEL
    """1: 5x5 cells, 1 box, 1-2 pushes; 2: 6x6, 1 box, 1-4; 3: 6x6, 2 boxes, 2-5; 4: 6x6, 2 boxes,
    5-12; 5: 7x7, 3 boxes, 6-16."""


class Sokoban:
    """Boards of one level. A board and its mirror images and rotations are in the same split."""

    environments = ("sokoban/1",)

    def __init__(self, options: Mapping[str, Any], seed: int) -> None:
        self._options = read_options("sokoban", options, SokobanOptions)
        self._seed = seed
        self._shape = LEVELS[self._options.level - 1]
        self._room = lru_cache(_ROOMS_KEPT)(self._make_room)

    def prompt(self, split: Split, index: int) -> Prompt:
        _, board = draw(split, lambda attempt: self._board(split, index, attempt))
        text = f"{board}\n"
        if self._options.wording == "full":
            text = f"{RULES}\n{text}"
        state = {"board": str(board)}
        return Prompt(text, state, Turns(MAX_TURNS, self.environments[0], state))

    def reward(self, prompt: Prompt, transcript: Transcript) -> float:
        board, _ = position(prompt.data, transcript.answers)
        return float(board.solved)

    def _board(self, split: Split, index: int, attempt: int) -> tuple[str, Board]:
        number, draws = divmod(attempt, _BOARDS_OF_A_ROOM)
        room = self._room(split, index, number)
        board = room.board(rng_of(self._seed, split, index, number, draws))
        return canonical(board), board

    def _make_room(self, split: Split, index: int, number: int) -> Room:
        return make_room(_room_rng(self._seed, split, index, number), self._shape)


def _room_rng(*parts: str | int) -> random.Random:
    return rng_of("room", *parts)
