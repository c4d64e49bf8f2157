"""The directory process: `python -m echo_p2p.directory.process`, spoken to by `client.py`.

It ends when its parent closes the pipe or dies, whatever it is doing, and p2pd ends with it. It
ends with an error if p2pd dies: a peer that hears nothing must not look alive.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from contextlib import suppress

from echo_p2p.directory.hive import DirectoryPeer, open_peer
from echo_p2p.directory.messages import (
    Command,
    Failed,
    Find,
    Found,
    Open,
    Opened,
    Publish,
    Published,
)
from echo_p2p.errors import DirectoryError, IdentityError
from echo_p2p.pipes import ParentPipe

_STOP_S = 4.0  # less than the parent waits before it kills us


async def _main(pipe: ParentPipe) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    inbox: asyncio.Queue[Command] = asyncio.Queue()

    def read() -> None:
        try:
            while (command := _next(pipe)) is not None:
                loop.call_soon_threadsafe(inbox.put_nowait, command)
        finally:
            loop.call_soon_threadsafe(task.cancel)
            time.sleep(_STOP_S)
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    options = await inbox.get()
    assert isinstance(options, Open)
    why = ""
    try:
        async with open_peer(options) as peer:
            pipe.send(Opened(number=options.number, addresses=await peer.addresses()))
            await _serve(peer, pipe, inbox)
    except* (DirectoryError, IdentityError) as group:
        why = str(group.exceptions[0])
    if why:
        pipe.send(Failed(number=options.number, message=why))
        sys.exit(why)


def _next(pipe: ParentPipe) -> Command | None:
    return pipe.receive(Command)  # type: ignore[arg-type]


async def _serve(peer: DirectoryPeer, pipe: ParentPipe, inbox: asyncio.Queue[Command]) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(peer.until_lost())
        tasks.create_task(peer.stay_joined())
        while True:
            tasks.create_task(_answer(peer, pipe, await inbox.get()))


async def _answer(peer: DirectoryPeer, pipe: ParentPipe, command: Command) -> None:
    try:
        match command:
            case Publish(number=number, place=place, envelope=envelope, expiry=expiry):
                copies = await peer.publish(place, envelope, expiry)
                pipe.send(Published(number=number, copies=copies))
            case Find(number=number, place=place):
                envelope_, expiry_ = await peer.find(place) or (None, 0.0)
                pipe.send(Found(number=number, envelope=envelope_, expiry=expiry_))
    except DirectoryError as error:
        pipe.send(Failed(number=command.number, message=str(error)))


def main() -> None:
    """Serve until the parent is gone."""
    pipe = ParentPipe(outlive_work=True)
    with suppress(asyncio.CancelledError):  # the parent is gone
        asyncio.run(_main(pipe))


if __name__ == "__main__":
    main()
