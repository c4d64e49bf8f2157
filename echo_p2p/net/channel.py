"""Bytes under Noise: a connection's socket, taken over from libp2p once the handshake is done.

libp2p reads a packet's length and body with a system call each and sends packets one by one; this
reads and writes many at a time. Whatever is not a plain TCP socket (a relayed connection) goes
through libp2p's own session instead.
"""

from __future__ import annotations

import socket as sockets
import sys
from typing import Any, Protocol

import trio
from cryptography.exceptions import InvalidTag
from libp2p.exceptions import BaseLibp2pError
from libp2p.io.trio import TrioTCPStream

from echo_p2p.net import tuning

if sys.platform == "linux":
    import fcntl

MAX_PLAIN_BYTES = 65535 - 16
_PACKET_BYTES = 2 + 16
_SIOCOUTQNSD = 0x894B


def sealed_bytes(plain: int) -> int:
    """What so many bytes sent at once are on the TCP connection: Noise's lengths and tags added."""
    return plain + -(-plain // MAX_PLAIN_BYTES) * _PACKET_BYTES


class ChannelError(Exception):
    """The connection under a channel broke, or the other side sent what is not Noise."""


class Channel(Protocol):
    """What the muxer needs of a secured connection. One task reads and one writes, at a time.

    `address` is the IP address of the other side; empty if it is not known (a relayed connection).
    """

    address: str

    async def receive(self) -> list[bytes]:
        """The plaintext of the packets that are there; empty at the end."""

    async def send(self, data: bytes) -> None:
        """Encrypt and send."""

    def unsent(self) -> int:
        """Bytes that were sent here and that the kernel has not put on the wire; 0 if unknown."""

    async def close(self) -> None:
        """Close the socket at once."""


class NoiseChannel:
    """A TCP socket and the two cipher states that the handshake left."""

    def __init__(self, session: Any, socket: trio.SocketStream) -> None:
        state = session.conn.noise_state.noise_protocol
        self._seal = state.cipher_state_encrypt.encrypt_with_ad
        self._unseal = state.cipher_state_decrypt.decrypt_with_ad
        self._socket = socket
        if hasattr(sockets, "TCP_NOTSENT_LOWAT"):  # Linux and macOS
            socket.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NOTSENT_LOWAT, tuning.UNSENT_BYTES)
        self.address = _address_of(socket)
        self._rest = b""
        early = session._drain(None)  # read ahead by libp2p while the muxer was negotiated
        self._early = [early] if early else []

    async def receive(self) -> list[bytes]:
        packets, self._early = self._early, []
        while not packets:
            try:
                data = await self._socket.receive_some(tuning.READ_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ChannelError("the connection broke") from error
            if not data:
                return []
            packets = self._packets(self._rest + bytes(data))
        return packets

    def _packets(self, data: bytes) -> list[bytes]:
        packets = []
        view, at = memoryview(data), 0
        try:
            while len(data) - at >= 2:
                end = at + 2 + int.from_bytes(view[at : at + 2], "big")
                if end > len(data):
                    break
                packets.append(self._unseal(b"", view[at + 2 : end]))
                at = end
        except InvalidTag as error:
            raise ChannelError("a packet that is not ours or was changed on the way") from error
        self._rest = data[at:]
        return packets

    async def send(self, data: bytes) -> None:
        view, sealed = memoryview(data), []
        for at in range(0, len(data), MAX_PLAIN_BYTES):
            packet = self._seal(b"", view[at : at + MAX_PLAIN_BYTES])
            sealed.append(len(packet).to_bytes(2, "big"))
            sealed.append(packet)
        try:
            await self._socket.send_all(b"".join(sealed))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ChannelError("the connection broke") from error

    def unsent(self) -> int:
        if sys.platform != "linux":
            return 0
        try:
            told = fcntl.ioctl(self._socket.socket.fileno(), _SIOCOUTQNSD, bytes(4))
        except OSError:  # it is gone already
            return 0
        return int.from_bytes(told, sys.byteorder)

    async def close(self) -> None:
        await trio.aclose_forcefully(self._socket)


class SessionChannel:
    """Any other connection, through libp2p's secured session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.address = ""

    async def receive(self) -> list[bytes]:
        try:
            data = await self._session.read(None)
        except (BaseLibp2pError, InvalidTag, OSError) as error:
            raise ChannelError("the connection broke") from error
        return [data] if data else []

    async def send(self, data: bytes) -> None:
        try:
            await self._session.write(data)
        except (BaseLibp2pError, OSError) as error:
            raise ChannelError("the connection broke") from error

    def unsent(self) -> int:
        return 0

    async def close(self) -> None:
        await self._session.close()


def _address_of(socket: trio.SocketStream) -> str:
    try:
        return str(socket.socket.getpeername()[0])
    except OSError:  # it is gone already
        return ""


def channel_of(session: Any) -> Channel:
    """The channel of a connection that libp2p has secured and negotiated a muxer on."""
    transport = session.conn.read_writer.read_write_closer.stream
    if isinstance(transport, TrioTCPStream):
        return NoiseChannel(session, transport.stream)
    return SessionChannel(session)
