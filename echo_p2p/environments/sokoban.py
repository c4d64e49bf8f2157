"""`sokoban/1`: push every box onto a goal. The environment, and the rules as functions on boards.

State: `{"board": text}`. A turn is a list of moves, `<answer>Right || Up</answer>`; the policy is
then shown the board.

A board in text has one row a line: `#` wall, `_` floor, `.` goal, `$` box, `*` box on a goal, `@`
player, `+` player on a goal. Cells are numbered row by row, so a move adds -width, +width, -1 or
+1. Invariants: boards are walled in all round, so no move leaves them; boxes are as many as goals;
a move against a wall, or against a box that cannot give way, leaves the board as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from echo_p2p.environments.tagged import plain, tagged_answer
from echo_p2p.errors import NoAnswerError, WireError

MOVES = ("Up", "Down", "Left", "Right")
SEPARATOR = "||"
MAX_MOVES = 25
"""Moves in one turn."""
MAX_TURNS = 4
MAX_SIDE = 12
"""Cells along one side of a board, at most."""

_BY_NAME = {move.lower(): move for move in MOVES}
_CELLS = "#_.$*@+"


@dataclass(frozen=True)
class Board:
    """A position. `walls`, `goals` and `boxes` are cell numbers."""

    width: int
    height: int
    walls: frozenset[int]
    goals: frozenset[int]
    boxes: frozenset[int]
    player: int

    @property
    def solved(self) -> bool:
        return self.boxes == self.goals

    def step(self, move: str) -> int:
        """By how much a move changes a cell number."""
        return {"Up": -self.width, "Down": self.width, "Left": -1, "Right": 1}[move]

    def after(self, move: str) -> Board:
        """The position after one move of `MOVES`."""
        step = self.step(move)
        ahead, beyond = self.player + step, self.player + 2 * step
        if ahead in self.walls:
            return self
        if ahead not in self.boxes:
            return replace(self, player=ahead)
        if beyond in self.walls or beyond in self.boxes:
            return self
        return replace(self, player=ahead, boxes=self.boxes - {ahead} | {beyond})

    def __str__(self) -> str:
        rows = range(0, self.width * self.height, self.width)
        return "\n".join(
            "".join(self._cell(cell) for cell in range(row, row + self.width)) for row in rows
        )

    def _cell(self, cell: int) -> str:
        if cell in self.walls:
            return "#"
        goal = cell in self.goals
        if cell in self.boxes:
            return "*" if goal else "$"
        if cell == self.player:
            return "+" if goal else "@"
        return "." if goal else "_"


def parse_board(text: str) -> Board:
    """Read a board; WireError says what is wrong with it."""
    rows = text.split("\n")
    width, height = len(rows[0]), len(rows)
    if not (3 <= width <= MAX_SIDE and 3 <= height <= MAX_SIDE):
        raise WireError(f"a board of {width} x {height} cells; sides are 3 to {MAX_SIDE}.")
    if any(len(row) != width for row in rows):
        raise WireError("the rows of a board are of different lengths.")
    cells = "".join(rows)
    odd = set(cells) - set(_CELLS)
    if odd:
        raise WireError(f"a board has cells {sorted(odd)}; it may have {_CELLS}.")
    edge = rows[0] + rows[-1] + "".join(row[0] + row[-1] for row in rows)
    players = _where(cells, "@+")
    board = Board(
        width=width,
        height=height,
        walls=_where(cells, "#"),
        goals=_where(cells, ".*+"),
        boxes=_where(cells, "$*"),
        player=min(players, default=0),
    )
    if set(edge) != {"#"} or len(players) != 1 or len(board.boxes) != len(board.goals):
        raise WireError("a board needs walls all round, one player, and as many boxes as goals.")
    return board


def _where(cells: str, kinds: str) -> frozenset[int]:
    return frozenset(i for i, cell in enumerate(cells) if cell in kinds)


def parse_moves(text: str) -> list[str]:
    """The moves of an answer such as `<answer>Right || Up</answer>`; NoAnswerError for others.

    An answer counts as a whole or not at all: one with an unknown move, or too many, moves nothing.
    """
    answer = plain(tagged_answer(text))
    names = [name.strip().lower() for name in answer.split(SEPARATOR)]
    if len(names) > MAX_MOVES:
        raise NoAnswerError(f"There are {len(names)} moves in it; at most {MAX_MOVES} are allowed.")
    for name in names:
        if name not in _BY_NAME:
            raise NoAnswerError(f"{name[:20]!r} is no move; moves are {', '.join(MOVES)}.")
    return [_BY_NAME[name] for name in names]


def play(board: Board, moves: Sequence[str]) -> Board:
    """The position after the moves; those after the last box came home are not made."""
    for move in moves:
        if board.solved:
            break
        board = board.after(move)
    return board


def reply(state: Mapping[str, Any], answers: Sequence[str]) -> str | None:
    """The board after all turns, and what was wrong with the last one; None when it is solved."""
    board, wrong = position(state, answers)
    if board.solved:
        return None
    return f"{wrong}{board}\n"


def position(state: Mapping[str, Any], answers: Sequence[str]) -> tuple[Board, str]:
    """The board after these turns, and a line on why the last one moved nothing, if it did not."""
    board, wrong = parse_board(state["board"]), ""
    for answer in answers:
        try:
            board, wrong = play(board, parse_moves(answer)), ""
        except NoAnswerError as error:
            wrong = f"Nothing was moved. {error.message}\n"
    return board, wrong
