"""A base in 4 bits: with bitsandbytes it trains like another, without it is refused."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path

import pytest
import torch
from learner_support import load_policy, make_config, scored, seeded_groups

from echo_hub.config import RunConfig
from echo_hub.learner.fit import need_of, shape_of
from echo_hub.learner.messages import (
    Audit,
    Audited,
    AuditedAll,
    AuditRollout,
    Audits,
    Start,
    Started,
    Train,
    Trained,
)
from echo_hub.learner.policy import Policy
from echo_hub.learner.process import Server
from echo_hub.models import addmix3_path
from echo_p2p.errors import ConfigError
from echo_p2p.toml import validate

NF4 = make_config(base={"quantisation": "nf4"})
INSTALLED = all(importlib.util.find_spec(name) for name in ("bitsandbytes", "accelerate"))


def load_nf4() -> Policy:
    return Policy.load(
        addmix3_path(), NF4.learner, dtype="float32", seed=0, quantisation=NF4.base.quantisation
    )


@pytest.mark.skipif(INSTALLED, reason="bitsandbytes is installed")
def test_without_bitsandbytes_it_says_what_to_install():
    with pytest.raises(ConfigError, match=r'"nf4" needs bitsandbytes.*not installed') as refused:
        load_nf4()
    assert "pip install bitsandbytes" in refused.value.fix


@pytest.mark.skipif(not INSTALLED, reason="needs bitsandbytes")
def test_a_base_in_4_bits_trains_and_audits_read_the_whole_one(tmp_path: Path):
    policy, whole = load_nf4(), load_policy(make_config())
    layer = policy.causal.get_decoder().layers[0].mlp.up_proj.get_base_layer()
    assert layer.weight.dtype == torch.uint8
    assert {weight.dtype for weight in policy.weights.values()} == {torch.float32}
    assert policy.weights.keys() == whole.weights.keys()
    (group,) = seeded_groups(whole, random.Random(0), 1)  # as a node samples
    server = Server()
    command = Start(
        config=NF4.model_dump_json(), base=str(addmix3_path()), checkpoint=None,
        out=str(tmp_path / "v0"),
    )  # fmt: skip
    assert isinstance(server.answer(command), Started)
    claims = zip(group.answers, group.logprobs, strict=True)
    audit = Audit(
        version=0, adapter=str(tmp_path / "v0" / "adapter"), prompt=group.prompt, seed=group.seed,
        temperature=1.0, rollouts=[AuditRollout(a, b) for a, b in claims],
    )  # fmt: skip
    answer = server.answer(Audits(groups=[audit]))
    assert isinstance(answer, AuditedAll)
    (evidence,) = answer.answers
    assert isinstance(evidence, Audited)
    assert (evidence.mismatches, evidence.max_logprob_difference < 1e-3) == (0, True)
    trained = server.answer(Train(version=0, groups=[scored(group, 0)], out=str(tmp_path / "v1")))
    assert isinstance(trained, Trained)


def test_weights_in_4_bits_cannot_be_trained_themselves():
    data = {"run": {"id": "t"}, "learner": {"adapter": "none"}, "base": {"quantisation": "nf4"}}
    with pytest.raises(ConfigError, match=r"base\.quantisation: weights of 4 bits cannot"):
        validate(data, RunConfig, source="run.toml")


def test_4_bits_need_a_quarter_of_bfloat16():
    shape = shape_of(addmix3_path())
    assert shape is not None
    needs = [
        need_of(
            shape,
            make_config(
                base={"dtype": "bfloat16", "quantisation": quantisation},
                learner={"device": "cuda"},
            ),
            longest=64,
            logits=1,
        )
        for quantisation in ("none", "nf4")
    ]
    assert needs[1].base == pytest.approx(0.26 * needs[0].base, rel=0.06)
    assert needs[1].audit == 0  # it is elsewhere
