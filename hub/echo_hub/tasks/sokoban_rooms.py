"""Sokoban boards that can be solved, of a known difficulty: reverse play, searched in breadth.

From every solved position of a room all positions are found that pulling boxes reaches, pull by
pull. So a board taken from depth d can be solved, and in no fewer than d pushes. Positions are bit
sets (bit n is cell n): the boxes, and the region in which the player can walk.

Reverse play and depth as difficulty are as in gym-sokoban (Schrader 2018), whose search is deep and
random; in breadth the depth is exact.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from echo_p2p.environments.sokoban import Board

MAX_POSITIONS = 20_000
"""The search of a room ends with the depth at which it has found so many."""
_MOST_ROOMS = 1000

Position = tuple[int, int]
"""Boxes, and where the player can be."""


@dataclass(frozen=True)
class Shape:
    """What boards are like: `size` cells a side with the outer walls, `walls` more within, at most;
    solved in `pushes` (least, most) pushes."""

    size: int
    boxes: int
    walls: int
    pushes: tuple[int, int]


@dataclass(frozen=True)
class Room:
    """Walls and goals, and the positions at one exact depth, in a fixed order."""

    shape: Shape
    walls: frozenset[int]
    goals: frozenset[int]
    depth: int
    positions: tuple[Position, ...]

    def board(self, rng: random.Random) -> Board:
        """A board at the room's depth, the player anywhere in its region."""
        boxes, region = rng.choice(self.positions)
        return Board(
            width=self.shape.size,
            height=self.shape.size,
            walls=self.walls,
            goals=self.goals,
            boxes=frozenset(_cells(boxes)),
            player=rng.choice(_cells(region)),
        )


def make_room(rng: random.Random, shape: Shape) -> Room:
    """A room with boards of the wanted depth; rooms that have none are thrown away."""
    for _ in range(_MOST_ROOMS):
        inside = _inside(shape.size)
        walls = set(rng.sample(inside, rng.randint(0, shape.walls)))
        floor = [cell for cell in inside if cell not in walls]
        goals = rng.sample(floor, shape.boxes)
        depths = positions_by_depth(floor, goals, shape.size, shape.pushes[1])
        least, most = shape.pushes[0], min(shape.pushes[1], len(depths) - 1)
        if least <= most:
            depth = rng.randint(least, most)
            outside = set(range(shape.size**2)) - set(floor)
            return Room(shape, frozenset(outside), frozenset(goals), depth, tuple(depths[depth]))
    raise AssertionError(f"no room of {_MOST_ROOMS} has boards like {shape}")


def positions_by_depth(
    floor: list[int], goals: list[int], size: int, deepest: int
) -> list[list[Position]]:
    """For each number of pushes d = 0, 1, ... up to `deepest`, the positions d pushes away."""
    free = _bits(floor)
    solved = _bits(goals)
    found: list[list[Position]] = [_regions(free & ~solved, solved, size)]
    seen = set(found[0])
    while len(found) <= deepest and len(seen) < MAX_POSITIONS:
        fresh: list[Position] = []
        for boxes, region in found[-1]:
            for position in _pulled(boxes, region, free, size):
                if position not in seen:
                    seen.add(position)
                    fresh.append(position)
        if not fresh:
            break
        found.append(fresh)
    return found


def _pulled(boxes: int, region: int, free: int, size: int) -> list[Position]:
    """The positions one pull away: the player, beside a box, steps back and takes it along."""
    open_cells = free & ~boxes
    after = []
    for step in (-size, size, -1, 1):
        # boxes that have the player's region beside them, and behind that a free cell
        able = boxes & _moved(region & _moved(open_cells, -step), -step)
        while able:
            box = able & -able
            able ^= box
            moved = boxes ^ box | _moved(box, step)
            player = _moved(box, 2 * step)
            after.append((moved, _region(player, free & ~moved, size)))
    return after


def _regions(open_cells: int, boxes: int, size: int) -> list[Position]:
    regions = []
    while open_cells:
        region = _region(open_cells & -open_cells, open_cells, size)
        regions.append((boxes, region))
        open_cells &= ~region
    return regions


def _region(start: int, open_cells: int, size: int) -> int:
    """All cells that can be walked to. The outer wall keeps rows from running into each other."""
    region = start
    while True:
        grown = region | (region << 1 | region >> 1 | region << size | region >> size) & open_cells
        if grown == region:
            return region
        region = grown


def _moved(cells: int, step: int) -> int:
    return cells << step if step > 0 else cells >> -step


def _inside(size: int) -> list[int]:
    return [row * size + column for row in range(1, size - 1) for column in range(1, size - 1)]


def _bits(cells: list[int]) -> int:
    return sum(1 << cell for cell in cells)


def _cells(bits: int) -> list[int]:
    return [cell for cell in range(bits.bit_length()) if bits >> cell & 1]


def canonical(board: Board) -> str:
    """The same text for a board and its mirror images and rotations."""
    rows = [list(row) for row in str(board).split("\n")]
    forms = []
    for _ in range(4):
        rows = [list(row) for row in zip(*rows[::-1], strict=True)]
        forms += ["\n".join(map("".join, rows)), "\n".join("".join(row[::-1]) for row in rows)]
    return min(forms)
