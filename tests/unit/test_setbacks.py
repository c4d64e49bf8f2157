"""When a run is paused, and which version a collapse returns to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from echo_hub.setbacks import Setbacks, kept_versions, version_to_return_to


def test_refusals_in_a_row() -> None:
    setbacks = Setbacks(3)
    assert [setbacks.refused() for _ in range(3)] == [False, False, True]
    setbacks.applied()
    assert [setbacks.refused() for _ in range(2)] == [False, False]
    setbacks.applied()
    assert setbacks.in_a_row == 0
    assert not setbacks.refused()


def test_deaths_on_one_batch() -> None:
    setbacks = Setbacks(3)
    assert [setbacks.died() for _ in range(2)] == [False, False]
    setbacks.applied()
    assert [setbacks.died() for _ in range(3)] == [False, False, True]
    setbacks.refused()  # that batch is gone
    assert not setbacks.died()


def test_returns_to_one_version_are_counted_across_updates() -> None:
    setbacks = Setbacks(2)
    assert not setbacks.returned(5)
    setbacks.applied()
    assert not setbacks.returned(7)
    setbacks.applied()
    assert setbacks.returned(5)
    setbacks.forgiven()
    assert not setbacks.returned(5)


@given(st.lists(st.sampled_from(["applied", "refused", "died", "returned"]), max_size=60))
def test_a_run_pauses_only_after_so_many_setbacks(events: list[str]) -> None:
    setbacks, since = Setbacks(3), 0
    for event in events:
        if event == "applied":
            setbacks.applied()
        else:
            since += 1
            method = getattr(setbacks, event)
            if method(1) if event == "returned" else method():
                assert since >= 3
                setbacks.forgiven()
                since = 0


versions = st.sets(st.integers(0, 50), min_size=1)


@given(versions, st.integers(0, 60))
def test_the_version_returned_to_is_kept_and_good_if_any_is(kept: set[int], good: int) -> None:
    chosen = version_to_return_to(kept, good)
    assert chosen in kept
    assert chosen <= good or min(kept) > good
    assert not any(chosen < version <= good for version in kept)


@given(versions, st.integers(1, 8), versions, st.integers(0, 60) | st.none())
def test_what_a_collapse_would_return_to_is_never_deleted(
    on_disk: set[int], newest: int, published: set[int], good: int | None
) -> None:
    kept = kept_versions(on_disk, newest=newest, published=published, good=good)
    assert kept <= on_disk
    assert set(sorted(on_disk)[-newest:]) <= kept
    assert len(kept) <= newest + 1
    if good is not None and on_disk & published:
        assert version_to_return_to(on_disk & published, good) in kept
