"""The engine that is somebody's server: what it lacks is named, and what it spoils is survived."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from http_policy import (
    ABILITIES,
    CONTEXT,
    VOCAB,
    Handler,
    PolicyServer,
    event_of,
    expected,
    logprobs_of,
    policy_server,
    wait_until,
)

from echo_node.engines.base import Job
from echo_node.engines.driver import Driver
from echo_node.engines.openai import KEY_VARIABLE, Patience, ServerEngine
from echo_node.engines.openai_client import Client
from echo_node.engines.openai_wire import request_for
from echo_p2p.errors import EngineError
from echo_p2p.wire import Sampling

HASTE = Patience(start_s=0.0, away_s=5.0, silence_s=20.0)


@pytest.fixture
def server() -> Iterator[PolicyServer]:
    with policy_server() as server:
        yield server


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    config = {"vocab_size": VOCAB, "max_position_embeddings": 1000}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("adapters") / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({"target_modules": ["q_proj"]}))
    return folders


def opened(url: str, base: Path, patience: Patience = HASTE, most: int = 8) -> Driver:
    driver = Driver(ServerEngine(url, max_sequences=most, patience=patience))
    driver.load(base, "float32")
    return driver


@pytest.fixture
def driver(server: PolicyServer, base: Path, adapters: list[Path]) -> Iterator[Driver]:
    driver = opened(server.url, base)
    driver.activate(1, adapters[0])
    yield driver
    driver.engine.close()


def jobs(count: int, limit: int = 12, **how: Any) -> list[Job]:
    chance = random.Random(count)
    sampling = Sampling(**{"temperature": 1.0, "max_new_tokens": limit, "stop": (3,), **how})
    return [
        Job([chance.randrange(VOCAB) for _ in range(1 + i % 5)], chance.getrandbits(63), i % 4,
            sampling, start=i % 3)
        for i in range(count)
    ]  # fmt: skip


def close_to(answer: Any) -> Any:
    return (answer.tokens, pytest.approx(answer.logprobs, abs=1e-5), answer.finish)


def parts(answer: Any) -> Any:
    return (answer.tokens, answer.logprobs, answer.finish)


def test_answers_are_those_of_the_definition(driver: Driver, adapters: list[Path]) -> None:
    assert driver.info is not None
    assert driver.info.context == CONTEXT
    assert driver.info.vocab_size == VOCAB
    work = [*jobs(20), *jobs(5, temperature=0.5, top_k=7), *jobs(4, top_p=0.7), *jobs(3, 1000)]
    answers = driver.generate(work)
    for job, answer in zip(work, answers, strict=True):
        assert parts(answer) == close_to(expected("one", job))
    assert {answer.finish for answer in answers} == {"stop", "length"}
    assert driver.engine.sampled == sum(len(answer.tokens) for answer in answers)
    scores = driver.score([5, 6, 7])
    wanted = [float(logprobs_of("one", [5, 6, 7][:n])[n + 5]) for n in (1, 2)]
    assert scores == pytest.approx(wanted, abs=1e-5)


def test_versions_run_side_by_side_under_names_never_used_twice(
    server: PolicyServer, driver: Driver, adapters: list[Path]
) -> None:
    names = set(server.adapters)
    server.hold.clear()
    work = jobs(6)
    for number, job in enumerate(work[:3]):
        driver.submit(number, job)
    driver.activate(2, adapters[1])
    driver.release(1)
    for number, job in enumerate(work[3:], start=3):
        driver.submit(number, job)
    assert driver.step() == []
    server.hold.set()
    answers = {}
    while driver.running:
        answers.update({done.number: done for done in driver.step()})
    for number, job in enumerate(work):
        version = 1 if number < 3 else 2
        assert answers[number].version == version
        assert parts(answers[number].completion) == close_to(
            expected(["", "one", "two"][version], job)
        )
    assert len(server.adapters) == 1  # the superseded one was unloaded
    assert not names & set(server.adapters)
    driver.activate(1, adapters[0])
    assert len({*names, *server.adapters}) == 3
    driver.engine.close()
    assert not server.adapters


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ("ids in", "token ids as a prompt"),
        ("ids out", "token ids of its answers"),
        ("logprobs", "log-probabilities of the tokens it sampled"),
        ("likeliest", "the likeliest tokens by id"),
        ("echo", "log-probabilities of a prompt"),
        ("names", "adapters by name"),
        ("adapters", "loading adapters at run time"),
        ("reads adapters", "it took one that does not exist"),
        ("sampler", "seeded sampling"),
        ("raw", "raw log-probabilities"),
        ("length", "as long as was asked for"),
    ],
)
def test_a_server_that_lacks_something_is_refused_and_told_what(
    server: PolicyServer, base: Path, lacking: str, said: str
) -> None:
    server.abilities = ABILITIES - {lacking}
    with pytest.raises(EngineError, match=said):
        opened(server.url, base)
    assert len(ABILITIES) == 11


def test_the_model_is_named_where_there_are_several(server: PolicyServer, base: Path) -> None:
    server.models = ["base", "other"]
    with pytest.raises(EngineError, match="base, other") as caught:
        opened(server.url, base)
    assert "#name" in caught.value.fix
    opened(f"{server.url}/v1#other", base).engine.close()
    assert {body["model"] for body in server.asked if "no-such" not in body["model"]} == {"other"}
    with pytest.raises(EngineError, match="no model 'third'"):
        opened(f"{server.url}#third", base)


def test_a_key_comes_from_the_environment(
    server: PolicyServer, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "secret"
    with pytest.raises(EngineError, match="401") as caught:
        opened(server.url, base)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    opened(server.url, base).engine.close()


def test_a_server_that_is_not_there_yet_is_waited_for(base: Path) -> None:
    with policy_server() as server:
        address = server.server_address
    with pytest.raises(EngineError, match="is not there"):
        opened(server.url, base)
    engine = ServerEngine(server.url, max_sequences=2, patience=Patience(start_s=30.0))
    import threading

    loaded: list[Any] = []
    thread = threading.Thread(target=lambda: loaded.append(engine.load(base, "float32")))
    thread.start()
    with policy_server(("127.0.0.1", address[1])):
        thread.join()
        engine.close()
    assert loaded


def test_whole_models_and_unknown_folders_are_refused(
    driver: Driver, adapters: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(EngineError, match="whole models"):
        driver.activate(2, tmp_path)
    with pytest.raises(EngineError, match="cannot read"):
        driver.activate(2, tmp_path / "nowhere")
    assert driver.active == 1


def test_an_adapter_that_the_server_does_not_see_is_refused(
    server: PolicyServer, driver: Driver, adapters: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    with pytest.raises(EngineError, match="did not take the adapter") as caught:
        driver.activate(2, adapters[1])
    assert "same path" in caught.value.fix
    monkeypatch.undo()
    job = jobs(1)[0]
    assert parts(driver.generate([job])[0]) == close_to(expected("one", job))


# --- harm -----------------------------------------------------------------------------------------


def once(harm: Callable[[Handler], None]) -> Callable[[Handler], bool]:
    """Do it to the first request only."""
    done: list[int] = []

    def spoil(handler: Handler) -> bool:
        if done:
            return False
        done.append(1)
        harm(handler)
        return True

    return spoil


def overloaded(handler: Handler) -> None:
    handler.fail("busy", 503)


def drops_at_once(handler: Handler) -> None:
    handler.drop()


def drops_in_the_middle(handler: Handler) -> None:
    handler.start_stream()
    handler.event(json.dumps(event_of([1], [-1.0])).encode())
    handler.drop()


def ends_too_soon(handler: Handler) -> None:
    handler.start_stream()
    handler.event(json.dumps(event_of([1], [-1.0])).encode())
    handler.chunk(b"")


def forgets_its_adapters(handler: Handler) -> None:
    handler.server.adapters.clear()
    handler.fail("The model does not exist.", 404)


@pytest.mark.parametrize(
    "harm",
    [overloaded, drops_at_once, drops_in_the_middle, ends_too_soon, forgets_its_adapters],
)
def test_what_passes_is_asked_again(server: PolicyServer, driver: Driver, harm: Any) -> None:
    server.spoil = once(harm)
    work = jobs(5)
    for job, answer in zip(work, driver.generate(work), strict=True):
        assert parts(answer) == close_to(expected("one", job))


def sends(*events: Any) -> Callable[[Handler], bool]:
    def spoil(handler: Handler) -> bool:
        handler.start_stream()
        for event in events:
            handler.event(event if isinstance(event, bytes) else json.dumps(event).encode())
        handler.event(b"[DONE]")
        handler.chunk(b"")
        return True

    return spoil


def one_endless_line(handler: Handler) -> bool:
    handler.start_stream()
    for _ in range(40):
        handler.chunk(b"x" * (1 << 16))
    return True


def many_events(handler: Handler) -> bool:
    handler.start_stream()
    for _ in range(4000):
        handler.event(b'{"choices": [], "x": "' + b"y" * 100 + b'"}')
    return True


def refused(handler: Handler) -> bool:
    handler.reply(b"no " * 100_000, 400)
    return True


def moved(handler: Handler) -> bool:
    handler.send_response(302)
    handler.send_header("location", "http://127.0.0.1:9/elsewhere")
    handler.send_header("content-length", "0")
    handler.end_headers()
    return True


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (sends(b"{garbage"), "not what was asked for"),
        (sends(b"[" * 5000), "not what was asked for"),
        (sends(b"\xff\xfe"), "not what was asked for"),
        (sends({"choices": 7}), "not what was asked for"),
        (sends(event_of([1.5], [-1.0])), "not what was asked for"),
        (sends(event_of([VOCAB], [-1.0])), f"a token {VOCAB}"),
        (sends(event_of([-1], [-1.0])), "a token -1"),
        (sends(event_of([1, 2], [-1.0])), "1 log-probabilities with 2 tokens"),
        (sends(event_of([1], [None])), "log-probability None"),
        (sends(event_of([1], [0.5])), "log-probability 0.5"),
        (sends(event_of([1] * 13, [-1.0] * 13)), "goes on after the end"),
        (sends(event_of([1, 3, 1], [-1.0] * 3)), "goes on after the end"),
        (sends(event_of([1], [-1.0])), "after 1 of 12 tokens"),
        (sends(), "after 0 of 12 tokens"),
        (one_endless_line, r"over \d+ bytes"),
        (many_events, r"over \d+ bytes"),
        (refused, r"400 .* no no"),
        (moved, "302"),
    ],
)
def test_what_is_no_answer_fails_the_work_and_leaves_the_engine_usable(
    server: PolicyServer, driver: Driver, spoil: Any, said: str
) -> None:
    server.spoil = spoil
    work = jobs(3)
    with pytest.raises(EngineError, match=said) as caught:
        driver.generate(work)
    assert len(str(caught.value)) < 1000
    assert driver.engine.running == 0
    server.spoil = None
    assert len(driver.generate(work)) == 3


def test_a_line_without_end_is_cut_off_long_before_an_answer_would_be(
    server: PolicyServer,
) -> None:
    async def read() -> None:
        client = Client(server.url)
        body = request_for(jobs(1)[0], model="base", limit=9, stream=True)
        async for _ in client.stream("/v1/completions", body, silence_s=10.0, most=1 << 30):
            pass

    server.spoil = one_endless_line
    with pytest.raises(EngineError, match="a line of over"):
        trio.run(read)


def test_a_server_that_stays_away_is_given_up(base: Path, adapters: list[Path]) -> None:
    with policy_server() as server:
        driver = opened(server.url, base, Patience(start_s=0.0, away_s=0.5))
        driver.activate(1, adapters[0])
    with pytest.raises(EngineError, match="is not there"):
        driver.generate(jobs(2))
    driver.engine.close()  # though nobody is there to unload anything


def test_a_server_that_hangs_is_given_up(
    server: PolicyServer, base: Path, adapters: list[Path]
) -> None:
    driver = opened(server.url, base, Patience(start_s=0.0, silence_s=0.6))
    driver.activate(1, adapters[0])
    server.hold.clear()
    with pytest.raises(EngineError, match="sampled nothing"):
        driver.generate(jobs(2))
    server.hold.set()
    assert len(driver.generate(jobs(2))) == 2
    driver.engine.close()


def test_a_step_does_not_wait_for_a_slow_server(server: PolicyServer, driver: Driver) -> None:
    server.hold.clear()
    driver.submit(1, jobs(1)[0])
    started = time.monotonic()
    assert driver.step() == []
    assert time.monotonic() - started < 5
    driver.drop([1])
    assert driver.engine.running == 0
    driver.submit(1, jobs(2)[1])  # the number may be used again
    server.hold.set()
    found = []
    while driver.running:
        found += driver.step()
    assert [done.number for done in found] == [1]
    assert parts(found[0].completion) == close_to(expected("one", jobs(2)[1]))


def test_no_more_requests_at_once_than_was_asked_for(server: PolicyServer, driver: Driver) -> None:
    server.hold.clear()
    driver.engine.resize(2)
    before = len(server.asked)
    for number, job in enumerate(jobs(6)):
        driver.submit(number, job)
    wait_until(lambda: len(server.asked) == before + 2)
    driver.step()
    assert len(server.asked) == before + 2
    driver.engine.resize(99)
    wait_until(lambda: len(server.asked) == before + 6)
    server.hold.set()
    while driver.running:
        driver.step()


def test_what_a_killed_process_left_is_unloaded(
    server: PolicyServer, driver: Driver, base: Path
) -> None:
    left = next(iter(server.adapters))
    server.adapters["somebody-elses"] = "x"
    opened(server.url, base).engine.close()
    assert left in server.unloaded
    assert "somebody-elses" not in server.unloaded
