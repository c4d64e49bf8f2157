"""What an attack is, and the list of them all, which the `attacks_*` modules fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from attack_support import GROUP, Arena

from echo_hub.rollouts.checks import Code
from echo_p2p.envelope import seal
from echo_p2p.wire import Submission

Act = Callable[[Arena], Awaitable[list[str]]]


@dataclass(frozen=True)
class Attack:
    """`act` returns what became of each thing it handed in; that must be `expected`.

    `code` is the one it is about. `counted` are the rollouts that the hub counts in all.
    """

    name: str
    act: Act
    expected: list[str]
    counted: Counter[str]

    @property
    def code(self) -> Code:
        return Code(next(code for code in reversed(self.expected) if code != "accepted"))

    def __str__(self) -> str:
        return f"{self.code}-{self.name}"


ATTACKS: list[Attack] = []


def add(name: str, act: Act, *expected: str, rollouts: int = GROUP) -> None:
    counted = Counter({code: expected.count(code) * rollouts for code in expected})
    ATTACKS.append(Attack(name, act, list(expected), +counted))


def attack(*expected: str, rollouts: int = GROUP) -> Callable[[Act], Act]:
    """Register a function as an attack that hands in groups of so many rollouts."""

    def register(act: Act) -> Act:
        add(act.__name__.replace("_", " "), act, *expected, rollouts=rollouts)
        return act

    return register


def lie(
    name: str, code: Code, spoil: Callable[[Submission], Submission], rollouts: int = GROUP
) -> None:
    """An honest answer, spoilt and then signed by the node itself."""

    async def act(arena: Arena) -> list[str]:
        honest = await arena.ready(arena.attacker)
        return [await arena.outcome(arena.attacker, spoil(honest))]

    add(name, act, code, rollouts=rollouts)


def forge(name: str, code: Code, spoil: Callable[[bytes, Arena], bytes]) -> None:
    """An honest answer in a signed envelope, and then something happens to the envelope."""

    async def act(arena: Arena) -> list[str]:
        honest = seal(arena.attacker.identity, await arena.ready(arena.attacker))
        return [(await arena.attacker.send(spoil(honest, arena))).code]

    add(name, act, code)
