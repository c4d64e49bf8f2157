"""A small OpenAI-compatible server with a toy policy, that can be made to lack or spoil anything.

What it samples is what `echo_p2p.sampling` says, so that an engine that speaks to it can be held to
`expected`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from echo_node.engines.base import Completion, Job
from echo_p2p.noise import row_keys
from echo_p2p.sampling import sample_numpy

VOCAB = 40
CONTEXT = 64
ABILITIES = frozenset(
    {
        "ids in", "ids out", "logprobs", "likeliest", "echo", "names", "adapters",
        "reads adapters", "sampler", "raw", "length",
    }
)  # fmt: skip


def logprobs_of(adapter: str, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """The toy policy: log-probabilities of the next token, float32 [VOCAB]."""
    seed = [len(tokens), *tokens[-3:], *adapter.encode()]
    logits = np.random.default_rng(seed).normal(0, 2, VOCAB).astype(np.float32)
    return logits - np.log(np.exp(logits).sum())


def expected(adapter: str, job: Job) -> Completion:
    """What a job's answer must be."""
    tokens: list[int] = []
    values: list[float] = []
    how = job.sampling
    limit = min(how.max_new_tokens, CONTEXT - len(job.prompt))
    while len(tokens) < limit and not (tokens and tokens[-1] in how.stop):
        logprobs = logprobs_of(adapter, [*job.prompt, *tokens])
        key = row_keys([(job.seed, job.index, job.start + len(tokens))])
        ways = how.temperature, how.top_k, how.top_p
        tokens.append(int(sample_numpy(logprobs[None], key, *ways)[0]))
        values.append(float(logprobs[tokens[-1]]))
    return Completion(tokens, values, "stop" if tokens[-1] in how.stop else "length")


class PolicyServer(ThreadingHTTPServer):
    """Its abilities, and the harm it does, may be changed while it runs."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        super().__init__(address, Handler)
        self.abilities = ABILITIES
        self.adapters: dict[str, str] = {}  # folders by name
        self.unloaded: list[str] = []
        self.key = ""
        self.spoil: Any = None
        """Called with the handler before a stream is answered; True: it has answered."""
        self.hold = threading.Event()
        """While it is clear, streams wait."""
        self.hold.set()
        self.asked: list[dict[str, Any]] = []
        self.models = ["base"]

    def handle_error(self, *_: Any) -> None:
        """Clients that break off are part of the tests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def policy_server(address: tuple[str, int] = ("127.0.0.1", 0)) -> Iterator[PolicyServer]:
    server = PolicyServer(address)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    server: PolicyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def can(self, ability: str) -> bool:
        return ability in self.server.abilities

    def reply(self, body: Any, status: int = 200) -> None:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def fail(self, words: str, status: int) -> None:
        self.reply({"error": {"message": words, "code": status}}, status)

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self.reply({"detail": "Not Found"}, 404)
            return
        found = [{"id": name, "max_model_len": CONTEXT} for name in self.server.models]
        found += [{"id": name, "parent": "base"} for name in self.server.adapters]
        self.reply({"object": "list", "data": found})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.server.key and self.headers["authorization"] != f"Bearer {self.server.key}":
            self.fail("Unauthorized", 401)
        elif self.path == "/v1/completions":
            self.server.asked.append(body)
            self.complete(body)
        elif self.path == "/v1/load_lora_adapter" and self.can("adapters"):
            name, folder = body["lora_name"], Path(body["lora_path"])
            if self.can("reads adapters") and not folder.is_dir():
                self.fail(f"Loading lora {name} failed: no adapter at {folder}", 404)
            else:
                self.server.adapters[name] = folder.name
                self.reply(b"Success")
        elif self.path == "/v1/unload_lora_adapter" and self.can("adapters"):
            self.server.unloaded.append(body["lora_name"])
            if self.server.adapters.pop(body["lora_name"], None) is None:
                self.fail(f"{body['lora_name']} cannot be found", 404)
            else:
                self.reply(b"Success")
        else:
            self.reply({"detail": "Not Found"}, 404)

    def complete(self, body: dict[str, Any]) -> None:
        adapter = self.server.adapters.get(body["model"], "")
        if not adapter and body["model"] not in self.server.models and self.can("names"):
            self.fail(f"The model {body['model']} does not exist.", 404)
        elif not isinstance(body["prompt"], list) or not self.can("ids in"):
            self.fail("prompt: a text is wanted", 400)
        elif body.get("echo"):
            self.echo(adapter, body["prompt"])
        elif body.get("stream"):
            self.server.hold.wait()
            if not (self.server.spoil and self.server.spoil(self)):
                self.stream(list(self.pieces(adapter, body)))
        else:
            pieces = list(self.pieces(adapter, body))
            choice: dict[str, Any] = {"text": "", "finish_reason": "length"}
            if self.can("ids out"):
                choice["token_ids"] = [token for token, _, _ in pieces]
            if self.can("logprobs"):
                choice["logprobs"] = {
                    "token_logprobs": [value for _, value, _ in pieces],
                    "top_logprobs": [top for _, _, top in pieces],
                }
            self.reply({"choices": [choice], "usage": {"prompt_tokens": len(body["prompt"])}})

    def echo(self, adapter: str, prompt: list[int]) -> None:
        values: list[float | None] = [None]
        for place in range(1, len(prompt)):
            values.append(float(logprobs_of(adapter, prompt[:place])[prompt[place]]))
        logprobs = {"token_logprobs": values} if self.can("echo") else None
        self.reply({"choices": [{"logprobs": logprobs}]})

    def pieces(
        self, adapter: str, body: dict[str, Any]
    ) -> Iterator[tuple[int, float, dict[str, float]]]:
        """Token by token: itself, its log-probability, the likeliest."""
        seed, index, start, temperature, top_k, top_p, _ = body["vllm_xargs"]["echo"]
        if not self.can("sampler"):
            seed += 1
        tokens: list[int] = []
        limit = body["max_tokens"] - (0 if self.can("length") else 1)
        while len(tokens) < limit and not (tokens and tokens[-1] in body["stop_token_ids"]):
            logprobs = logprobs_of(adapter, [*body["prompt"], *tokens])
            key = row_keys([(seed, index, start + len(tokens))])
            token = int(sample_numpy(logprobs[None], key, temperature, top_k, top_p)[0])
            if not self.can("raw"):
                logprobs = np.where(np.arange(VOCAB) == token, 0.0, -9999.0)
            best = np.argsort(-logprobs)[: body["logprobs"]].tolist()
            name = "token_id:{}" if self.can("likeliest") else "word {}"
            shown = {name.format(i): float(logprobs[i]) for i in {*best, token}}
            tokens.append(token)
            yield token, float(logprobs[token]), shown

    def stream(self, pieces: Sequence[tuple[int, float, Any]]) -> None:
        self.start_stream()
        for token, value, _ in pieces:
            self.event(json.dumps(event_of([token], [value])).encode())
        self.event(b"[DONE]")
        self.chunk(b"")

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def event(self, data: bytes) -> None:
        self.chunk(b"data: " + data + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def drop(self) -> None:
        """Close the connection in the middle."""
        self.close_connection = True
        self.wfile.flush()
        self.connection.close()


def event_of(tokens: Sequence[int], values: Sequence[Any]) -> dict[str, Any]:
    return {"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": values}}]}


def wait_until(condition: Any, deadline_s: float = 20.0) -> None:
    """Look again and again; an assertion fails when it takes longer."""
    until = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)
