"""Answers as the API tells them: advantages are the learner's, pieces make up the text."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echo_hub.api.routes.public import pseudonym
from echo_hub.api.transcripts import advantages_of, sampled_lengths, told
from echo_hub.config.learner import LearnerSection
from echo_hub.learner import advantages
from echo_hub.models import addmix3_path
from echo_hub.tokens import Tokenizer
from echo_p2p.wire import Rollout, pack_logprobs, pack_tokens

REWARDS = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.7, 1.0]), min_size=2, max_size=8)
FORMS = ("dr_grpo", "grpo", "rloo")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(addmix3_path())


@given(rewards=REWARDS, form=st.sampled_from(FORMS))
def test_an_advantage_is_what_the_learner_computes(rewards: list[float], form: str) -> None:
    rules = LearnerSection.model_validate({"advantage": form})
    expected = getattr(advantages, form)(torch.tensor([rewards], dtype=torch.float64))[0].tolist()
    found = advantages_of(rewards, [3] * len(rewards), rules, limit=8)
    assert found == pytest.approx(expected, abs=1e-9)


def test_an_overlong_answer_is_worth_less_and_nothing_is_said_before_there_is_a_reward() -> None:
    rules = LearnerSection.model_validate({"overlong_tokens": 4})
    assert advantages_of([1.0, 1.0], [8, 2], rules, limit=8) == [-0.5, 0.5]
    assert advantages_of(None, [8, 2], rules, limit=8) is None


def test_the_pieces_of_an_answer_are_its_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("12+34=46", "raw")
    answer = Rollout(
        tokens=pack_tokens([*tokens, tokenizer.eos[0]]),
        logprobs=pack_logprobs([-0.5] * (len(tokens) + 1)),
        finish="stop",
        observed=((1, 3),),
    )
    (one,) = told([answer], tokenizer, rewards=[1.0], advantages=None)
    assert "".join(one.tokens[:-1]) == one.text == "12+34=46"
    assert len(one.tokens) == len(one.logprobs) == len(tokens) + 1
    assert one.tokens[-1] == "<eos>"
    assert (one.reward, one.advantage, one.observed) == (1.0, None, [(1, 3)])
    assert sampled_lengths([answer]) == [len(tokens) - 1]
    assert tokenizer.pieces([]) == []


def test_a_pseudonym_stays_the_same_in_a_run_and_is_another_in_the_next() -> None:
    assert pseudonym(b"a", b"key") == pseudonym(b"a", b"key")
    assert len({pseudonym(b"a", b"key"), pseudonym(b"b", b"key"), pseudonym(b"a", b"yek")}) == 3
