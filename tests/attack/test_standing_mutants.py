"""Each rule of standing is needed: without it, a test of `test_reputation` or its like fails.

Every mutant takes one rule out of the hub's code, in memory, and runs the tests that are about it
in a process of their own; they must fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
FOLDERS = {"echo_hub": ROOT / "hub" / "echo_hub", "echo_p2p": ROOT / "echo_p2p"}


@dataclass(frozen=True)
class Mutant:
    """`module` with `rule` replaced; `tests` must notice."""

    name: str
    module: str
    rule: str
    instead: str
    tests: str
    package: str = "echo_hub"

    def __str__(self) -> str:
        return self.name


REPLAY, DIALOGUE = "unit/test_replay.py", "unit/test_dialogue.py"
HUB_TURNS = "unit/test_hub_dialogues.py"
SECOND_LOOK = "unit/test_second_look.py"
KEEPER, REPUTATION, DOORS = "unit/test_keeper.py", "unit/test_reputation.py", "unit/test_doors.py"

MUTANTS = [
    Mutant(
        "newcomers are not all audited", "rollouts.reputation",
        "max(rules.floor, rules.probation /", "max(rules.floor, 1 /", REPUTATION,
    ),
    Mutant(
        "no floor", "rollouts.reputation",
        "max(rules.floor, rules.probation", "max(0.0, rules.probation", REPUTATION,
    ),
    Mutant(
        "standing does not decay", "rollouts.reputation",
        "math.exp2(-halvings)", "1.0", REPUTATION,
    ),
    Mutant(
        "fraud beyond doubt is no reason to ban", "rollouts.reputation",
        "if not (\n            found.max_margin", "if False and (\n            found.max_margin",
        REPUTATION,
    ),
    Mutant(
        "the sequential test is not asked", "rollouts.reputation",
        "if evidence.condemned:", "if False:", REPUTATION,
    ),
    Mutant(
        "a key keeps its standing when it is banned and unbanned", "rollouts.reputation",
        "self._records[node] = Record()", "pass", REPUTATION,
    ),
    Mutant(
        "groups need not wait for those before them", "rollouts.reputation",
        "self._decided.pop(waiting[0], None)",
        "next((self._decided.pop(x) for x in list(waiting) if x in self._decided), None)",
        REPUTATION,
    ),
    Mutant(
        "what is given back costs nothing", "rollouts.keeper",
        "self.reputation.gave_back(node, leases, self._clock())", "pass", KEEPER,
    ),
    Mutant(
        "leases that expire cost nothing", "rollouts.keeper",
        "self.reputation.lost(node, self._clock())\n\n    def gave_back",
        "pass\n\n    def gave_back", KEEPER,
    ),
    Mutant(
        "a bad answer costs nothing", "rollouts.keeper",
        "elif code in FAULTS:", "elif False:", KEEPER,
    ),
    Mutant(
        "a failed audit costs nothing", "rollouts.keeper",
        "elif verdict.code in FAULTS:", "elif False:", KEEPER,
    ),
    Mutant(
        "banned keys are let in", "rollouts.keeper",
        "if why is not None:\n            raise", "if False:\n            raise", KEEPER,
    ),
    Mutant(
        "nothing is evicted", "rollouts.keeper",
        "group_ids, leases = self._evict(node)", "group_ids, leases = [], []", KEEPER,
    ),
    Mutant(
        "what is being checked of a banned key goes on", "rollouts.keeper",
        "if self.reputation.banned(node):\n            return", "if False:\n            return",
        KEEPER,
    ),
    Mutant(
        "who is wrong all the time need not wait", "rollouts.keeper",
        "if wait_s:", "if False:", KEEPER,
    ),
    Mutant(
        "later verdicts are not told", "rollouts.keeper",
        "self._verdicts.add(node, receipt)", "pass", KEEPER,
    ),
    Mutant(
        "operators are not heard", "rollouts.keeper",
        "in await self._ledger.decisions.open_requests():", "in []:", KEEPER,
    ),
    Mutant(
        "what was trained on is not disputed", "ledger.rows",
        "_dispute(connection, groups.c.node == row.node)", "pass", KEEPER,
    ),
    Mutant(
        "an update in hand is not disputed", "ledger.rows",
        "_dispute(connection, groups.c.update_no == version)", "pass", KEEPER,
    ),
    Mutant(
        "newcomers are not capped", "rollouts.granting",
        "most = for_newcomers if newcomer else", "most =", KEEPER,
    ),
    Mutant(
        "what could not be audited is trusted", "rollouts.assess",
        "return Assessed(group, Rejection(Code.NOT_AUDITED))", "return Assessed(group, rewards)",
        "unit/test_front.py::test_what_is_due_for_an_audit_is_not_trained_on_without_it",
    ),
    Mutant(
        "dialogues are not played again", "scoring.process", "if fault:", "if False:", REPLAY,
    ),
    Mutant(
        "the turn that is answered need not be the one that was handed in", "tasks.replay",
        "answer.told[number].turn != so_far[-1]", "False", REPLAY,
    ),
    Mutant(
        "an observation may be another", "dialogue",
        "if tokens[at : len(dialogue.tokens)] != dialogue.tokens[at:]:", "if False:", DIALOGUE,
        "echo_p2p",
    ),
    Mutant(
        "a dialogue may go on after its end", "dialogue",
        "if len(tokens) > len(dialogue.tokens):", "if False:", DIALOGUE, "echo_p2p",
    ),
    Mutant(
        "turns may be said to be observed", "dialogue",
        "if list(map(tuple, observed)) != dialogue.observed:", "if False:", DIALOGUE, "echo_p2p",
    ),
    Mutant(
        "a turn may be exchanged after it was answered", "rollouts.dialogues",
        "if told[turn.number].turn != tokens:", "if False:", HUB_TURNS,
    ),
    Mutant(
        "turns may be asked in any order", "rollouts.dialogues",
        "number > len(told), ", "False, ", HUB_TURNS,
    ),
    Mutant(
        "what was said is not kept", "rollouts.dialogues",
        "await self.ledger.put_dialogue(", "await trio.lowlevel.checkpoint(); (", HUB_TURNS,
    ),
    Mutant(
        "what is observed is audited", "audit.derive",
        "mask[start:end] = False", "pass", "unit/test_audit.py",
    ),
    Mutant(
        "refused batches are not audited", "guarding",
        "false = await self._front.look_again(groups)", "false: list[int] = []", SECOND_LOOK,
    ),
    Mutant(
        "lies in a refused batch cost nothing", "rollouts.second_look",
        "verdict = await self._keeper.judge(assessed)", "verdict = assessed.verdict", SECOND_LOOK,
    ),
    Mutant(
        "what an audit had passed of a liar stays in a refused batch", "rollouts.second_look",
        "rejected.setdefault(number, Rejection(Code.BANNED))", "pass", SECOND_LOOK,
    ),
    Mutant(
        "what a lie kept from being trained on is forgotten", "rollouts.front",
        "for group in others:", "for group in others[:0]:", SECOND_LOOK,
    ),
    Mutant(
        "refusals count, explained or not", "guarding",
        "if false:\n            self._setbacks.explained()",
        "if false:\n            if self._setbacks.refused(): await self.pause_at(0, '')",
        SECOND_LOOK,
    ),
    Mutant(
        "an address may bring any number of keys", "rollouts.doors",
        "                return False", "                return True", DOORS,
    ),
    Mutant(
        "a slow node may hold as much as a quick one", "rollouts.pace",
        "min(self._most, max(1,", "min(self._most, max(99,", DOORS,
    ),
]  # fmt: skip

_LOADER = """
import importlib.util, sys
from pathlib import Path
import {parent}
name, path, rule, instead = sys.argv[1:5]
source = Path(path).read_text(encoding="utf-8")
assert source.count(rule) == 1, f"{{rule!r}} occurs {{source.count(rule)}} times in {{path}}"
spec = importlib.util.spec_from_file_location(name, path)
module = importlib.util.module_from_spec(spec)
sys.modules[name] = module
exec(compile(source.replace(rule, instead), path, "exec"), vars(module))
import pytest
sys.exit(pytest.main(["-x", "-q", "-m", "not slow", "-p", "no:cacheprovider", *sys.argv[5:]]))
"""


def run(mutant: Mutant) -> subprocess.CompletedProcess[str]:
    name = f"{mutant.package}.{mutant.module}"
    path = FOLDERS[mutant.package] / f"{mutant.module.replace('.', '/')}.py"
    return subprocess.run(
        [sys.executable, "-c", _LOADER.format(parent=mutant.package), name,
         str(path), mutant.rule, mutant.instead, str(TESTS / mutant.tests)],
        capture_output=True, text=True, timeout=170, env=os.environ, cwd=TESTS.parent,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=str)
def test_without_a_rule_its_test_fails(mutant: Mutant) -> None:
    done = run(mutant)
    noticed = done.returncode == 1 and "\nFAILED " in done.stdout  # by a test, not by the loader
    assert noticed, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_same_way_of_running_them_passes_without_a_mutation() -> None:
    honest = Mutant(
        "none", "rollouts.doors", "_MOST_NETWORKS = 20_000", "_MOST_NETWORKS = 20_000", DOORS
    )
    assert run(honest).returncode == 0
