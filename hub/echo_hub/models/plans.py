"""Sokoban with its thoughts: what the base for it is shown of good play. For boards of one box."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import lru_cache

from echo_p2p.environments.sokoban import MOVES, SEPARATOR, Board


def planned(board: Board) -> list[str]:
    """A shortest solution, one push a turn, with what was thought before it.

    The cells inside the walls by number; where you, box, goal and wall are; from where the box is
    pushed to where; the way there; the moves.
    """
    turns = []
    plan = shortest(board) or []
    while plan:
        start, way, made = board, [board.player], 0
        while board.boxes == start.boxes:
            board = board.after(plan[made])
            way.append(board.player)
            made += 1
        inner = _inside(board)
        places = (("@", start.player), ("$", min(start.boxes)), (".", min(start.goals)))
        seen = "".join(f"{inner[cell]}{str(start)[_place(start, cell)]}" for cell in inner)
        walls = "".join(str(inner[cell]) for cell in start.walls if cell in inner)
        where = "".join(f"{mark}{inner[cell]}" for mark, cell in places)
        push = f"{inner[way[-2]]}{inner[min(board.boxes)]}"
        path = ">".join(str(inner[cell]) for cell in way)
        turns.append(f"{seen}\n{where}#{walls}:{push}\n{path}{answer(plan[:made])}")
        plan = plan[made:]
    return turns


def answer(moves: Sequence[str]) -> str:
    return f"<answer>{f' {SEPARATOR} '.join(moves)}</answer>"


def _inside(board: Board) -> dict[int, int]:
    """Cells that are not at the edge, and the numbers from 1 on that they are called by."""
    rows, columns = range(1, board.height - 1), range(1, board.width - 1)
    cells = [row * board.width + column for row in rows for column in columns]
    return {cell: number for number, cell in enumerate(cells, 1)}


def _place(board: Board, cell: int) -> int:
    """Where a cell stands in the board's text."""
    return cell + cell // board.width


@lru_cache(maxsize=1 << 16)
def shortest(board: Board) -> list[str] | None:
    """The fewest moves that solve a board, found in breadth; None if nothing does."""
    queue: deque[tuple[Board, list[str]]] = deque([(board, [])])
    seen = {(board.boxes, board.player)}
    while queue:
        here, moves = queue.popleft()
        if here.solved:
            return moves
        for move in MOVES:
            after = here.after(move)
            if (after.boxes, after.player) not in seen:
                seen.add((after.boxes, after.player))
                queue.append((after, [*moves, move]))
    return None
