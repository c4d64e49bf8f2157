"""A peer that claims to have everything, and then misbehaves in one of several ways."""

from __future__ import annotations

from collections.abc import Callable

import trio

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import PeerRefusedError
from echo_p2p.net.host import Peer
from echo_p2p.net.stream import HEADER, Remote, Stream
from echo_p2p.wire import (
    MAX_SWARM_BYTES,
    SWARM_PROTOCOL,
    ChunkReply,
    ChunkRequest,
    HaveReply,
    HaveRequest,
    Message,
    Refusal,
    SwarmRequest,
    decode,
    encode,
)

WAYS = (
    "liar",  # bytes that are not the chunk
    "other chunk",  # a chunk that was not asked for
    "short",  # less than the chunk
    "refuser",  # refuses what it said it had
    "mute",  # never answers a request for a chunk
    "trickler",  # one byte a second
    "chatty",  # answers at once that it has nothing, for ever
    "nonsense",  # a set of chunks that no artifact can have
    "fickle",  # breaks the stream off in the middle of a chunk
)


class Hostile:
    """Answers on SWARM_PROTOCOL from its construction on, about what `lie_about` named.

    Args:
        asked: called with the number of requests for chunks, at each.
    """

    def __init__(self, peer: Peer, how: str, *, asked: Callable[[int], None] | None = None) -> None:
        assert how in WAYS
        self.requests = 0
        """For chunks or for what it has."""
        self.chunks_asked = 0
        self._how = how
        self._asked = asked
        self._artifacts: dict[bytes, Artifact] = {}
        peer.serve_stream(SWARM_PROTOCOL, self._serve)

    def lie_about(self, artifact: Artifact) -> None:
        """Claim to have this one too."""
        self._artifacts[artifact.id] = artifact

    async def _serve(self, remote: Remote, stream: Stream) -> None:
        while True:
            frame = await stream.receive(MAX_SWARM_BYTES, deadline_s=600)
            request = decode(frame, SwarmRequest)  # type: ignore[arg-type,var-annotated]
            self.requests += 1
            if isinstance(request, HaveRequest):
                await stream.send(encode(await self._have(request)))
            elif isinstance(request, ChunkRequest):
                self.chunks_asked += 1
                if self._asked is not None:
                    self._asked(self.chunks_asked)
                await self._chunk(stream, request)
            else:
                await stream.send(encode(Refusal(code="not_a_hub", sentence="No hub.")))

    async def _have(self, request: HaveRequest) -> Message:
        if self._how == "chatty":
            return HaveReply(have=b"")
        if self._how == "nonsense":
            return HaveReply(have=b"\xff" * 8192)
        artifact = self._artifacts.get(request.artifact)
        if artifact is None:
            return HaveReply(have=b"")
        count = artifact.layout.count
        everything = bitmap.to_bytes(bitmap.full(count), count)
        if request.known == everything:
            await trio.sleep(request.wait_s)
        return HaveReply(have=everything)

    async def _chunk(self, stream: Stream, request: ChunkRequest) -> None:
        artifact, index = self._artifacts.get(request.artifact), request.index
        if artifact is None or index is None or self._how == "refuser":
            await stream.send(encode(Refusal(code="not_here", sentence="I will not.")))
            return
        if self._how == "mute":
            await trio.sleep_forever()
        wrong = bytes(artifact.layout.size(index))
        if self._how == "other chunk":
            index = (index + 1) % artifact.layout.count
        if self._how == "short":
            wrong = wrong[:-1]
        reply = encode(ChunkReply(index=index, data=wrong))
        if self._how == "trickler":
            for byte in HEADER.pack(len(reply)) + reply:
                await stream._muxed.write(bytes([byte]))
                await trio.sleep(1)
        elif self._how == "fickle":
            await stream._muxed.write(HEADER.pack(len(reply)) + reply[: len(reply) // 2])
            raise PeerRefusedError("enough", code="enough")  # which resets the stream
        else:
            await stream.send(reply)
