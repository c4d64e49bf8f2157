"""Nodes for demos, whose engine is not a volunteer's: the program around `cheat` and `throttle`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from echo_node.console import open_console
from echo_node.engines.remote import RemoteEngine
from echo_node.limits.book import Book
from echo_node.paths import node_folder
from echo_node.start import JoinOptions, join
from echo_p2p.errors import EchoError
from echo_p2p.nursery import open_nursery

OpenEngine = Callable[..., AbstractAsyncContextManager[RemoteEngine]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `echo-hub demo` says to every node that it starts."""
    parser.add_argument("--bootstrap")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--listen", default="/ip4/127.0.0.1/tcp/0")
    parser.add_argument("--threads", type=int, default=1)


@asynccontextmanager
async def opened(engine: RemoteEngine) -> AsyncIterator[RemoteEngine]:
    """An engine in the place of `engines.remote.open_engine`."""
    async with open_nursery() as nursery:
        nursery.start_soon(engine.run)
        yield engine
        nursery.cancel_scope.cancel()


def join_with(
    open_engine: OpenEngine,
    asked: argparse.Namespace,
    name: str,
    *,
    max_sequences: int | None = None,
) -> int:
    """Be a node with this engine; the exit code."""
    options = JoinOptions(
        folder=node_folder(asked.data_dir),
        bootstrap=asked.bootstrap,
        listen=(asked.listen,),
        max_sequences=max_sequences,
        book=Book().changed({"cpu_threads": str(asked.threads), "priority": "normal"}, "flag"),
        until_eof=True,
    )
    try:
        with open_console(json_lines=True) as report:
            return trio.run(partial(join, options, report, open_engine=open_engine))
    except EchoError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
