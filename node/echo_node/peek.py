"""One small file of an artifact, without the rest: a base's config.json before its weights.

Promise: what is returned is of the artifact that the hub signed, each chunk checked by its digest.
"""

from __future__ import annotations

from blake3 import blake3

from echo_p2p.artifact import bitmap
from echo_p2p.artifact.manifest import Artifact
from echo_p2p.errors import ArtifactError, ChunkError
from echo_p2p.net.host import Peer
from echo_p2p.net.rpc import ask
from echo_p2p.wire import (
    MAX_SWARM_BYTES,
    SWARM_PROTOCOL,
    ChunkReply,
    ChunkRequest,
    Elsewhere,
)

MAX_PEEK_BYTES = 1 << 20


async def peek(peer: Peer, hub: str, artifact: Artifact, name: str, *, deadline_s: float) -> bytes:
    """A file's bytes, from a connected hub.

    Raises:
        ArtifactError: the artifact has no such file, or one too large for a peek.
        NetError: the hub did not give it in time.
    """
    layout = artifact.layout
    sizes = {file.name: file.size for file in layout.files}
    if not 0 < sizes.get(name, 0) <= MAX_PEEK_BYTES:
        raise ArtifactError(f"{artifact} has no {name}, or one over {MAX_PEEK_BYTES} bytes.")
    parts: dict[int, bytes] = {}
    for index in range(layout.count):
        if not any(piece.name == name for piece in layout.slices(index)):
            continue
        chunk = await _chunk(peer, hub, artifact, index, deadline_s)
        position = 0
        for piece in layout.slices(index):
            if piece.name == name:
                parts[piece.offset] = chunk[position : position + piece.length]
            position += piece.length
    return b"".join(parts[offset] for offset in sorted(parts))


async def _chunk(peer: Peer, hub: str, artifact: Artifact, index: int, deadline_s: float) -> bytes:
    request = ChunkRequest(
        artifact=artifact.id,
        index=None,  # a hub gives what is lacking, if it is asked to insist
        lacks=bitmap.to_bytes(1 << index, artifact.layout.count),
        insist=True,
        backlog_s=None,
    )
    reply = await ask(
        peer,
        hub,
        SWARM_PROTOCOL,
        request,
        ChunkReply | Elsewhere,
        deadline_s=deadline_s,
        max_reply=MAX_SWARM_BYTES,
    )
    data = bytes(reply.data) if isinstance(reply, ChunkReply) else b""
    if blake3(data).digest() != artifact.digest(index):
        raise ChunkError(f"chunk {index} of {artifact} did not come from the hub.")
    return data
