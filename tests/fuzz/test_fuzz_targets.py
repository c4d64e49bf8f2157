"""The fuzz targets on a few hundred inputs each, and on every input that once broke one."""

from __future__ import annotations

import pytest
from fuzz_targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("name", TARGETS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_whatever_comes_is_refused_or_sound(name: str, data: st.DataObject) -> None:
    target = TARGETS[name]
    target.run(data.draw(st.binary(max_size=300)))
    seed = bytearray(data.draw(st.sampled_from(target.seeds())))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, max(0, len(seed) - 1)))
        seed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    target.run(bytes(seed))


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_accepted(name: str) -> None:
    """One that is refused would lead a fuzzer nowhere."""
    for seed in TARGETS[name].seeds():
        assert TARGETS[name].run(seed)
