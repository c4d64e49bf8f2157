"""A command's end of the control socket: one blocking question to the running node."""

from __future__ import annotations

import socket
from typing import TypeVar

import msgspec

from echo_node.control.lock import find_running
from echo_node.control.messages import HEADER, MAX_REPLY_BYTES, Refused, Reply, Request
from echo_node.paths import NodeFolder
from echo_p2p.errors import ConfigError, NotRunningError

PATIENCE_S = 40.0

R = TypeVar("R", bound=Reply)


def ask_node(folder: NodeFolder, request: Request, kind: type[R]) -> R:
    """The node's reply. NotRunningError: there is none, or it does not answer; ConfigError: it
    refuses."""
    holder = find_running(folder)
    silent = NotRunningError(
        f"the node here (process {holder.pid}) does not answer.",
        fix="Is it stopped, or just ending? If it stays so, end that process.",
    )
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(holder.socket)
            body = msgspec.msgpack.encode(request)
            connection.sendall(HEADER.pack(len(body)) + body)
            size = HEADER.unpack(_read(connection, HEADER.size))[0]
            if size > MAX_REPLY_BYTES:
                raise silent
            reply = msgspec.msgpack.decode(_read(connection, size), type=Reply)
    except (OSError, EOFError) as error:
        raise silent from error
    except msgspec.DecodeError as error:
        raise NotRunningError(
            f"the node here (process {holder.pid}) answers in a way that is not understood.",
            fix="It is of another version of this program; end it and start it again.",
        ) from error
    if isinstance(reply, Refused):
        raise ConfigError(reply.message, fix=reply.fix)
    if not isinstance(reply, kind):
        raise silent
    return reply


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(min(1 << 16, size - len(data)))
        if not more:
            raise EOFError
        data += more
    return data
