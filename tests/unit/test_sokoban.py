"""Sokoban against a second implementation: characters on a grid, and search from the front."""

from __future__ import annotations

import random
from collections import deque

import pytest

from echo_hub.tasks.base import Transcript
from echo_hub.tasks.sokoban import LEVELS, Sokoban
from echo_hub.tasks.sokoban_rooms import canonical, make_room
from echo_p2p.environments.sokoban import (
    MAX_MOVES,
    MOVES,
    Board,
    parse_board,
    parse_moves,
    reply,
)
from echo_p2p.errors import NoAnswerError, WireError

STEPS = {"Up": (-1, 0), "Down": (1, 0), "Left": (0, -1), "Right": (0, 1)}
LEAVES = {"@": "_", "+": ".", "$": "_", "*": "."}
ENTERS_AS_PLAYER = {"_": "@", ".": "+"}
ENTERS_AS_BOX = {"_": "$", ".": "*"}


def moved(text: str, move: str) -> str:
    """The rules again, on characters."""
    grid = [list(row) for row in text.split("\n")]
    row, column = next(
        (r, c) for r, line in enumerate(grid) for c, cell in enumerate(line) if cell in "@+"
    )
    down, right = STEPS[move]
    r, c = row + down, column + right
    if grid[r][c] in "$*":
        if grid[r + down][c + right] not in "_.":
            return text
        grid[r + down][c + right] = ENTERS_AS_BOX[grid[r + down][c + right]]
        grid[r][c] = LEAVES[grid[r][c]]
    if grid[r][c] == "#":
        return text
    grid[r][c] = ENTERS_AS_PLAYER[grid[r][c]]
    grid[row][column] = LEAVES[grid[row][column]]
    return "\n".join(map("".join, grid))


def fewest_pushes(text: str) -> tuple[int, list[str]]:
    """Search from the front (walking costs nothing, a push one): pushes, and moves that do it."""
    queue = deque([(text, 0, [])])  # type: ignore[var-annotated]
    done: set[str] = set()
    while queue:
        board, pushes, moves = queue.popleft()
        if board in done:
            continue
        done.add(board)
        if "$" not in board:
            return pushes, moves
        for move in MOVES:
            after = moved(board, move)
            pushed = [i for i, cell in enumerate(after) if cell in "$*"] != [
                i for i, cell in enumerate(board) if cell in "$*"
            ]
            add = queue.append if pushed else queue.appendleft
            if after not in done:
                add((after, pushes + pushed, [*moves, move]))
    raise AssertionError("it cannot be solved")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_moves_are_as_the_other_implementation_makes_them(level: int) -> None:
    rng = random.Random(level)
    for number in range(30):
        board = make_room(random.Random(number), LEVELS[level - 1]).board(rng)
        text = str(board)
        assert str(parse_board(text)) == text
        for _ in range(60):
            move = rng.choice(MOVES)
            board, text = board.after(move), moved(text, move)
            assert str(board) == text
            assert board.solved == ("$" not in text)


@pytest.mark.parametrize(("level", "rooms"), [(1, 20), (2, 20), (3, 8), (4, 3)])
def test_boards_take_exactly_as_many_pushes_as_their_depth(level: int, rooms: int) -> None:
    shape = LEVELS[level - 1]
    for number in range(rooms):
        rng = random.Random(number)
        room = make_room(rng, shape)
        board = room.board(rng)
        assert shape.pushes[0] <= room.depth <= shape.pushes[1]
        assert (board.width, len(board.boxes)) == (shape.size, shape.boxes)
        assert fewest_pushes(str(board))[0] == room.depth


def test_reverse_search_finds_every_board_there_is() -> None:
    """In a room of 3 x 3: all placements that search from the front can solve, with its depth."""
    goal, floor = 6, [6, 7, 8, 11, 12, 13, 16, 17, 18]
    from echo_hub.tasks.sokoban_rooms import positions_by_depth

    depths = positions_by_depth(floor, [goal], 5, 20)
    found = {
        (boxes.bit_length() - 1, player): depth
        for depth, positions in enumerate(depths)
        for boxes, region in positions
        for player in floor
        if region >> player & 1
    }
    walls = frozenset(range(25)) - frozenset(floor)
    for box in floor:
        for player in floor:
            board = Board(5, 5, walls, frozenset([goal]), frozenset([box]), player)
            if box == player:
                continue
            try:
                pushes, _ = fewest_pushes(str(board))
            except AssertionError:
                assert (box, player) not in found
            else:
                assert found[box, player] == pushes


def answers_of(moves: list[str]) -> str:
    return f"<answer>{' || '.join(moves)}</answer>"


def test_a_solution_is_rewarded_in_one_turn_or_in_several() -> None:
    task = Sokoban({}, 5)
    for index in range(5):
        prompt = task.prompt("train", index)
        board = prompt.data["board"]
        assert prompt.text.endswith(f"\n{board}\n")
        _, moves = fewest_pushes(board)
        assert prompt.turns is not None
        assert reply(prompt.turns.state, [answers_of(moves)]) is None
        assert task.reward(prompt, Transcript((answers_of(moves),), ())) == 1.0
        assert task.reward(prompt, Transcript((answers_of(moves[:-1]),), ())) == 0.0
        parts = (answers_of(moves[:2]), "I wonder.", answers_of(moves[2:]))
        assert task.reward(prompt, Transcript(parts, ("", ""))) == 1.0
        said = reply(prompt.turns.state, parts[:1])
        after = moved(moved(board, moves[0]), moves[1])
        assert said == f"{after}\n"
        confused = reply(prompt.turns.state, parts[:2])
        assert confused == f"Nothing was moved. There is no <answer>...</answer> in it.\n{after}\n"


def test_mirror_images_and_rotations_are_one_board() -> None:
    board = make_room(random.Random(1), LEVELS[2]).board(random.Random(1))
    rows = str(board).split("\n")
    flipped = "\n".join(rows[::-1])
    turned = "\n".join("".join(column) for column in zip(*rows, strict=True))
    assert canonical(parse_board(flipped)) == canonical(board) == canonical(parse_board(turned))
    other = make_room(random.Random(2), LEVELS[2]).board(random.Random(1))
    assert canonical(other) != canonical(board)


@pytest.mark.parametrize(
    ("text", "moves"),
    [
        ("<answer>Up</answer>", ["Up"]),
        ("Well: <answer> right||UP || left </answer> so.", ["Right", "Up", "Left"]),
        (answers_of(["Up"] * MAX_MOVES), ["Up"] * MAX_MOVES),
    ],
)
def test_moves_are_read(text: str, moves: list[str]) -> None:
    assert parse_moves(text) == moves


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no <answer>"),
        ("Up", "no <answer>"),
        ("<answer>Up", "no <answer>"),
        ("</answer>Up<answer>", "comes before"),
        ("<answer></answer>", "'' is no move"),
        ("<answer>Up</answer><answer>Down</answer>", "more than one"),
        ("<answer>Up || Jump</answer>", "'jump' is no move"),
        ("<answer>Up |</answer>", "is no move"),
        ("<answer>U\u0440</answer>", "not ASCII: '\\\\u0440'"),
        ("<answer>\uff35p</answer>", "not ASCII"),
        (answers_of(["Up"] * (MAX_MOVES + 1)), "26 moves in it"),
        (f"<answer>{'Up||' * 100_000}</answer>", "longer than"),
        ("<answer>" * 100_000, "no <answer>"),
    ],
)
def test_other_answers_move_nothing(text: str, why: str) -> None:
    with pytest.raises(NoAnswerError, match=why):
        parse_moves(text)


@pytest.mark.parametrize(
    "text",
    ["", "#", "###\n#@#\n##", "####\n#@$#\n####", "###\n#_#\n###", "####\n#@@#\n####",
     "####\n_@_#\n####", "####\n#@x#\n####", "#" * 5000],
)  # fmt: skip
def test_what_is_no_board(text: str) -> None:
    with pytest.raises(WireError):
        parse_board(text)
