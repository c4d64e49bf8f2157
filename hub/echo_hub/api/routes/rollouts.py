"""/api/v1/rollouts: groups of answers, found by what became of them or by their words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from sqlalchemy import Connection

from echo_hub.api import models
from echo_hub.api.errors import missing
from echo_hub.api.site import TheView
from echo_hub.api.transcripts import (
    advantages_of,
    answer_text,
    rollouts_of,
    sampled_lengths,
    told,
)
from echo_hub.api.view import View, key_of, peer_id
from echo_hub.ledger import browse
from echo_hub.ledger.browse import GroupLine, Wanted
from echo_hub.ledger.decisions import read_audit
from echo_hub.rollouts.checks import Code
from echo_hub.tasks.base import Split
from echo_hub.tokens import Tokenizer

router = APIRouter(tags=["rollouts"])

LOOK_AT = 20_000
"""Groups that one request looks through, by their state and reward."""
READ = 400
"""Groups whose words one request reads."""
EXCERPT = 160

_State = Literal["received", "scored", "consumed", "dropped"]
_Words = Annotated[str, Query(max_length=200, description="Words in an answer.")]


@router.get("/rollouts")
async def get_rollouts(
    view: TheView,
    order: Literal["newest", "best", "worst"] = "newest",
    q: _Words = "",
    state: _State | None = None,
    reason: Annotated[str | None, Query(max_length=40)] = None,
    node: models.PeerId | None = None,
    version: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    split: Literal["train", "heldout"] | None = None,
    before: Annotated[int | None, Query(ge=1, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> models.GroupPage:
    """Groups, newest first, or by the reward of their best or worst answer. `next_before` goes on
    also where nothing was found: only so many groups are looked through at a time."""
    wanted = Wanted(
        node=None if node is None else key_of(node),
        version=version,
        split=split,
        state=state,
        reason=reason,
    )
    tokenizer = await view.tokenizer()
    search = partial(_search, tokenizer, q.strip().lower(), view)
    groups, next_before, scanned = await view.reader.read(search, wanted, before, limit, order)
    return models.GroupPage(groups=groups, next_before=next_before, scanned=scanned)


@router.get("/rollouts/{group}")
async def get_group(
    view: TheView, group: Annotated[int, Path(ge=1, le=2**53)]
) -> models.GroupDetail:
    """One group, with its prompt and its answers token by token."""
    tokenizer = await view.tokenizer()
    found = await view.reader.read(partial(_detail, tokenizer, view), group)
    if found is None:
        raise missing(f"group {group}", "It may be of another run, or have never been accepted.")
    facts, answers, audit = found
    split: Split = "heldout" if facts.split == "heldout" else "train"
    return models.GroupDetail(
        **facts.model_dump(),
        prompt=await view.prompt_text(split, facts.prompt_index),
        rollouts=answers,
        audit=audit,
        sentence=_sentence(facts.reason),
    )


def _search(
    tokenizer: Tokenizer,
    words: str,
    view: View,
    connection: Connection,
    wanted: Wanted,
    before: int | None,
    limit: int,
    order: str,
) -> tuple[list[models.GroupFacts], int | None, int]:
    lines, next_before, scanned = browse.group_lines(
        connection, wanted, before=before, limit=READ if words else limit, look_at=LOOK_AT,
        sort=order,
    )  # fmt: skip
    found: list[models.GroupFacts] = []
    for number, line in enumerate(lines):
        texts = _texts(tokenizer, line)
        if words and not any(words in text.lower() for text in texts):
            continue
        found.append(_facts(view, line, texts))
        if len(found) == limit and number + 1 < len(lines):  # the rest is read another time
            return found, line.group_id if order == "newest" else None, number + 1
    return found, next_before, len(lines) if words else scanned


def _detail(
    tokenizer: Tokenizer, view: View, connection: Connection, group: int
) -> tuple[models.GroupFacts, list[models.Rollout], models.AuditFacts | None] | None:
    line = browse.group_line(connection, group)
    if line is None:
        return None
    rollouts = rollouts_of(line.envelope, line.node)
    config = view.config
    advantages = advantages_of(
        line.rewards,
        sampled_lengths(rollouts),
        config.learner,
        limit=config.sampling.max_new_tokens,
    )
    answers = told(rollouts, tokenizer, rewards=line.rewards, advantages=advantages)
    found = read_audit(connection, group)
    audit = None
    if found is not None:
        audit = models.AuditFacts(
            max_margin=found.max_margin,
            max_logprob_difference=found.max_logprob_difference,
            mismatches=found.mismatches,
            tokens=found.tokens,
        )
    return _facts(view, line, [answer.text for answer in answers]), answers, audit


def _texts(tokenizer: Tokenizer, line: GroupLine) -> list[str]:
    return [answer_text(tokenizer, one) for one in rollouts_of(line.envelope, line.node)]


def _facts(view: View, line: GroupLine, texts: Sequence[str]) -> models.GroupFacts:
    rewards = line.rewards
    best = max(range(len(texts)), key=rewards.__getitem__) if rewards else 0
    return models.GroupFacts(
        group=line.group_id,
        trace=line.lease_id.hex(),
        node=peer_id(line.node),
        task=_task(view, line.split, line.prompt_index),
        split=line.split,
        prompt_index=line.prompt_index,
        version=line.version,
        state=line.state,
        reason=line.reason,
        rewards=rewards,
        update=line.update_no,
        received_at=line.received_at,
        audited=line.audited,
        disputed=line.disputed,
        excerpt=texts[best][:EXCERPT] if texts else "",
    )


def _task(view: View, split: Any, index: int) -> str:
    try:
        number = view.config.mixture.task_of(split, index)
    except LookupError:  # of a task that the run no longer has
        return ""
    return view.config.all_tasks[number].called


def _sentence(reason: str | None) -> str:
    if reason is None:
        return ""
    return Code(reason).sentence if reason in set(Code) else reason
