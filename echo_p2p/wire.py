"""Every message that crosses the network: typed, frozen, bounded.

Encoding is MessagePack of a map of field names (msgspec). Decoding accepts exactly the fields and
types written here: anything unknown, missing, truncated, oversized or of another type is a
`WireError`, whatever the bytes. Lists of token ids travel as packed little-endian uint32 and
log-probabilities as packed little-endian float32 (`pack_*`, `unpack_*`).

`Signed` messages travel in envelopes and stay valid wherever they came from. Requests and replies
are answered on a connection that Noise has already authenticated, and are not signed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from echo_p2p.errors import WireError

KIB, MIB = 1024, 1024 * 1024

MAX_GROUP = 64
MAX_TOKENS = 32_768
MAX_CHUNK_BYTES = 4 * MIB
MAX_CHUNKS = 1 << 16
MAX_ADDRESSES = 16
MAX_VERDICTS = 64
MAX_TURNS = 64
MAX_STATE_BYTES = 16 * KIB
MAX_WRAP_TOKENS = 256
MAX_MEASURE_BYTES = MIB // 2

Bytes16 = Annotated[bytes, Meta(min_length=16, max_length=16)]
Bytes32 = Annotated[bytes, Meta(min_length=32, max_length=32)]
Bytes64 = Annotated[bytes, Meta(min_length=64, max_length=64)]
RunId = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,62}\Z")]
Version = Annotated[int, Meta(ge=0, lt=2**31)]
Seconds = Annotated[float, Meta(ge=0, le=4e9)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Address = Annotated[str, Meta(min_length=1, max_length=256)]
Sentence = Annotated[str, Meta(max_length=1000)]
Code = Annotated[str, Meta(pattern=r"^[a-z][a-z_]{0,39}\Z")]
PackedTokens = Annotated[bytes, Meta(max_length=4 * MAX_TOKENS)]
PackedLogprobs = Annotated[bytes, Meta(max_length=4 * MAX_TOKENS)]
Spans = Annotated[
    tuple[
        tuple[Annotated[int, Meta(ge=0, le=MAX_TOKENS)], Annotated[int, Meta(ge=0, le=MAX_TOKENS)]],
        ...,
    ],
    Meta(max_length=MAX_TURNS - 1),
]
EnvironmentId = Annotated[str, Meta(pattern=r"^([a-z][a-z0-9-]{0,39}/[1-9][0-9]{0,3})?\Z")]
ReleaseVersion = Annotated[str, Meta(pattern=r"^[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}\Z")]
PersonName = Annotated[
    str,
    Meta(
        max_length=40,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]*\Z",
    ),
]
"""What a person calls themselves: no control characters, none that turn the writing round."""
EnvelopeBytes = Annotated[bytes, Meta(max_length=8 * MIB)]
Bitmap = Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8)]
MAX_BACKLOG_S = 3600.0
ByteCount = Annotated[int, Meta(ge=0, lt=2**44)]
Count = Annotated[int, Meta(ge=0, lt=2**53)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """Base of everything on the wire. The type's name is its tag."""


class Signed(Message, frozen=True):
    """Base of messages that travel in envelopes."""


# --- what the hub signs -----------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How tokens are drawn, as `echo_p2p.sampling` defines it (`top_k` 0 and `top_p` 1 are off).

    `stop` are token ids that end an answer (kept in it).
    """

    temperature: Annotated[float, Meta(gt=0, le=100)]
    max_new_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
    stop: Annotated[tuple[Annotated[int, Meta(ge=0, lt=2**31)], ...], Meta(max_length=16)]
    top_k: Annotated[int, Meta(ge=0, lt=2**24)] = 0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0


class Turns(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an answer of several turns goes on, as `echo_p2p.dialogue` defines it.

    `environment` says what the policy is told after a turn, given `state`, a JSON object; if it is
    empty, the hub does (`TurnRequest`). `before` and `after` are the token ids that stand around an
    observation's own. A turn has at most `turn_tokens` tokens, an answer `max_turns` turns.
    """

    environment: EnvironmentId
    state: Annotated[bytes, Meta(max_length=MAX_STATE_BYTES)]
    before: Annotated[bytes, Meta(max_length=4 * MAX_WRAP_TOKENS)]
    after: Annotated[bytes, Meta(max_length=4 * MAX_WRAP_TOKENS)]
    max_turns: Annotated[int, Meta(ge=1, le=MAX_TURNS)]
    turn_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)]


class RunDescription(Signed, frozen=True):
    """What a run is, for a node that knows only its id and the hub's key.

    `base` is the artifact id of the base-model snapshot; `staleness` is S, in versions;
    `context` the longest prompt + answer in tokens; `dtype` what the engine must compute in.
    `environments` are those that its leases may name.
    """

    run_id: RunId
    task: Annotated[str, Meta(max_length=200)]
    base: Bytes32
    group_size: Annotated[int, Meta(ge=1, le=MAX_GROUP)]
    staleness: Annotated[int, Meta(ge=0, le=1000)]
    vocab_size: Annotated[int, Meta(ge=2, lt=2**24)]
    context: Annotated[int, Meta(ge=2, le=2 * MAX_TOKENS)]
    dtype: Literal["float32", "bfloat16"]
    created_at: Seconds
    environments: Annotated[tuple[EnvironmentId, ...], Meta(max_length=64)]


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One file of an artifact: a relative POSIX path and its size in bytes."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    size: ByteCount


class DeltaOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a delta joins, by artifact id: with `parent` at hand, it decodes to `target`.

    An artifact id is the digest of a manifest that names the digest of the whole content, so
    these two settle every byte on both sides.
    """

    parent: Bytes32
    target: Bytes32


class Manifest(Signed, frozen=True):
    """One artifact: its files, laid end to end and cut into chunks.

    `chunks` is the concatenation of each chunk's BLAKE3 digest (32 bytes each); `content` is the
    BLAKE3 digest of all file contents end to end. The artifact id is the BLAKE3 digest of the
    signed bytes of the manifest. `delta` is there in a delta's manifest and in no other; its
    `version` is its target's. `artifact.manifest` checks the consistency.
    """

    run_id: RunId
    kind: Literal["base", "adapter", "delta"]
    version: Version
    files: Annotated[tuple[FileEntry, ...], Meta(min_length=1, max_length=1000)]
    chunk_bytes: Annotated[int, Meta(ge=KIB, le=MAX_CHUNK_BYTES)]
    chunks: Annotated[bytes, Meta(max_length=32 * MAX_CHUNKS)]
    content: Bytes32
    created_at: Seconds
    delta: DeltaOf | None


class RunRecord(Signed, frozen=True):
    """What the directory holds about a run: where its hub is, and its newest version."""

    run_id: RunId
    version: Version
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]
    adapter: Bytes32 | None
    expires_at: Seconds


class Lease(Signed, frozen=True):
    """The hub's order for one group: `group_size` answers to one prompt.

    Rollout i is sampled with the noise stream (seed, i). The policy version used must lie in
    [min_version, max_version]; `max_version` None leaves it open upwards. Times are Unix seconds
    by the hub's clock. `turns` is None if the policy answers once.
    """

    run_id: RunId
    lease_id: Bytes16
    node: Bytes32
    prompt: PackedTokens
    group_size: Annotated[int, Meta(ge=1, le=MAX_GROUP)]
    seed: Seed
    sampling: Sampling
    min_version: Version
    max_version: Version | None
    issued_at: Seconds
    expires_at: Seconds
    turns: Turns | None


class Receipt(Signed, frozen=True):
    """The hub's answer to a submission: accepted, or rejected with a reason code and a sentence."""

    run_id: RunId
    lease_id: Bytes16
    accepted: bool
    code: Code
    sentence: Sentence
    at: Seconds


class Credit(Signed, frozen=True):
    """What a node has given to a run until `at`, by the hub's ledger: to keep, and to show around.

    Counted is what was accepted and is not disputed: groups, rollouts, and the tokens that the
    policy sampled; `audited_tokens` are those of groups that were derived again. `person` is the
    key that vouched for the node, `name` what it goes by.
    """

    run_id: RunId
    node: Bytes32
    person: Bytes32 | None
    name: PersonName
    groups: Count
    rollouts: Count
    tokens: Count
    audited_tokens: Count
    since: Seconds
    at: Seconds


# --- what a node signs --------------------------------------------------------------------------


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One sampled answer: token ids, and the raw (temperature 1) log-probability of each.

    `observed` are half-open spans of `tokens` that an environment wrote between the turns of the
    policy; their log-probabilities are 0. `finish` says how the last turn ended.
    """

    tokens: PackedTokens
    logprobs: PackedLogprobs
    finish: Literal["stop", "length"]
    observed: Spans = ()


class Submission(Signed, frozen=True):
    """A group, in answer to a lease; `rollouts[i]` was sampled with the noise stream (seed, i)."""

    run_id: RunId
    lease_id: Bytes16
    version: Version
    rollouts: Annotated[tuple[Rollout, ...], Meta(max_length=MAX_GROUP)]


class Voucher(Signed, frozen=True):
    """A person's word, by their own key: this machine is mine. `name` goes on the leader board."""

    machine: Bytes32
    name: PersonName
    at: Seconds


class Release(Signed, frozen=True):
    """A release of this program, by the key that the program ships with.

    `protocol` is the oldest that it speaks; `wheel` lies beside the release, and is `size` bytes.
    """

    version: ReleaseVersion
    protocol: Annotated[int, Meta(ge=0, lt=2**16)]
    wheel: Annotated[str, Meta(max_length=200, pattern=r"^echo_p2p-[A-Za-z0-9_.+-]+\.whl\Z")]
    size: Annotated[int, Meta(ge=1, le=64 * MIB)]
    sha256: Bytes32
    at: Seconds


# --- node to hub --------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First request of a session. `addresses` are where other nodes may dial this one."""

    protocol: Annotated[int, Meta(ge=0, lt=2**16)]
    run_id: RunId
    software: Annotated[str, Meta(max_length=80)]
    engine: Annotated[str, Meta(max_length=80)]
    addresses: Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)]


class LatestRequest(Message, frozen=True):
    """What is newest? Works without a directory, and needs no session."""

    run_id: RunId


class Latest(Message, frozen=True):
    """Envelopes of the run description, the base's manifest, and the newest adapter's manifest.

    `delta`: that of a delta from the version published before to the newest, if there is one.
    """

    run: EnvelopeBytes
    base: EnvelopeBytes
    adapter: EnvelopeBytes | None
    delta: EnvelopeBytes | None
    hub_time: Seconds


class LeaseRequest(Message, frozen=True):
    """Ask for up to `groups` leases. `version` is the newest this node can generate with now.

    The hub may hold the request up to `wait_s` seconds until there is work.
    """

    run_id: RunId
    version: Version
    groups: Annotated[int, Meta(ge=1, le=1024)]
    wait_s: Annotated[float, Meta(ge=0, le=60)]


class LeaseGrant(Message, frozen=True):
    """Leases (envelopes), possibly none. `state` "complete" means the run is over: go home.

    `verdicts` are `Receipt`s (envelopes) for groups that were accepted and found unfit later on.
    """

    leases: Annotated[tuple[EnvelopeBytes, ...], Meta(max_length=1024)]
    state: Literal["open", "complete"]
    verdicts: Annotated[tuple[EnvelopeBytes, ...], Meta(max_length=MAX_VERDICTS)]


class StandbyRequest(Message, frozen=True):
    """Why do I get no leases? Asked by a node that waited for some in vain."""

    run_id: RunId


class StandbyReply(Message, frozen=True):
    """`standby`: others work, and the node is kept ready; `sentence` says why, and `until` (Unix
    seconds) when its turn may be expected, None if nobody can know."""

    standby: bool
    sentence: Sentence
    until: Seconds | None


class LeaseReturn(Message, frozen=True):
    """Leases the node will not answer, given back at once so that others can have them."""

    run_id: RunId
    lease_ids: Annotated[tuple[Bytes16, ...], Meta(max_length=1024)]


class Farewell(Message, frozen=True):
    """The node leaves the run: leases that it still holds go to others, and nothing is awaited."""

    run_id: RunId


class Done(Message, frozen=True):
    """A request was carried out and has nothing to say."""


class HandedTurn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Turn `number` (0, 1, ...) of a rollout, with its stop token."""

    rollout: Annotated[int, Meta(ge=0, lt=MAX_GROUP)]
    number: Annotated[int, Meta(ge=0, lt=MAX_TURNS)]
    tokens: PackedTokens


class TurnRequest(Message, frozen=True):
    """What does the hub say after these turns of a lease whose `turns` name no environment?

    Asking again for a turn that was answered gives the same answer.
    """

    run_id: RunId
    lease_id: Bytes16
    turns: Annotated[tuple[HandedTurn, ...], Meta(min_length=1, max_length=MAX_GROUP)]


class TurnReply(Message, frozen=True):
    """Token ids to append after each turn, or None where the dialogue is over.

    `ready` false: the hub is still at it; ask again.
    """

    ready: bool
    replies: Annotated[tuple[PackedTokens | None, ...], Meta(max_length=MAX_GROUP)]


class Introduce(Message, frozen=True):
    """Hand in the `Voucher` (its envelope) of the person whose machine this is."""

    run_id: RunId
    voucher: EnvelopeBytes


class CreditRequest(Message, frozen=True):
    """What have I given so far?"""

    run_id: RunId


class CreditReply(Message, frozen=True):
    """A `Credit` (its envelope)."""

    credit: EnvelopeBytes


class Submit(Message, frozen=True):
    """Hand in a `Submission` (its envelope)."""

    envelope: EnvelopeBytes


class SubmitReply(Message, frozen=True):
    """A `Receipt` (its envelope)."""

    receipt: EnvelopeBytes


class Watch(Message, frozen=True):
    """Opens a stream of `Announcement`s as versions appear, and `Heartbeat`s between them."""

    run_id: RunId


class Announcement(Message, frozen=True):
    """A new version: the envelope of its manifest, and that of a delta to it, if there is one."""

    adapter: EnvelopeBytes
    delta: EnvelopeBytes | None


class Heartbeat(Message, frozen=True):
    """The hub is alive. Sent when nothing else was for a while."""

    hub_time: Seconds


# --- swarm: node to hub, and node to node -------------------------------------------------------


class HaveRequest(Message, frozen=True):
    """Which chunks of this artifact do you have?

    `known` is what the asker already knows of (bit i of byte i // 8, least significant first);
    the answer is held up to `wait_s` seconds until there is something beyond it.
    """

    artifact: Bytes32
    known: Bitmap
    wait_s: Annotated[float, Meta(ge=0, le=30)]


class HaveReply(Message, frozen=True):
    """The chunks the peer has, as a bitmap."""

    have: Bitmap


class ChunkRequest(Message, frozen=True):
    """Ask for one chunk; it is sent when its turn has come.

    `index` names it. With `index` None (hub only) the asker lists what it `lacks`, and the hub
    picks one that it has sent to nobody, or answers `Elsewhere` if there is none and `insist` is
    false. `Elsewhere` is also its answer to a named chunk that the asker can get from others.
    `backlog_s`, beside `lacks`: how long a chunk would wait at the asker until it is passed on;
    None if the asker passes nothing on.
    """

    artifact: Bytes32
    index: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)] | None
    lacks: Bitmap
    insist: bool
    backlog_s: Annotated[float, Meta(ge=0, le=MAX_BACKLOG_S)] | None


class ChunkReply(Message, frozen=True):
    """A chunk's bytes. Worth nothing until its digest was checked against the manifest.

    Decoded, `data` is a view of the message: a chunk is not copied once more.
    """

    index: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
    data: Annotated[memoryview, Meta(max_length=MAX_CHUNK_BYTES)]


class Elsewhere(Message, frozen=True):
    """Not from me now: other nodes have, or are receiving, all you lack."""


class PeersRequest(Message, frozen=True):
    """Which nodes have, or are fetching, this artifact?"""

    artifact: Bytes32


class PeersReply(Message, frozen=True):
    """For each such node, the addresses at which it can be dialled (each ends in /p2p/<id>)."""

    peers: Annotated[
        tuple[Annotated[tuple[Address, ...], Meta(max_length=MAX_ADDRESSES)], ...],
        Meta(max_length=256),
    ]


class BadChunkReport(Message, frozen=True):
    """A peer sent a chunk that does not match its digest."""

    artifact: Bytes32
    peer: Annotated[str, Meta(max_length=80)]
    index: Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]


class Obtained(Message, frozen=True):
    """The node has fetched this artifact, whole, in so many seconds, from the hub and from others.

    Time and bytes are what the node says; the hub shows them and decides nothing by them.
    """

    artifact: Bytes32
    seconds: Seconds
    from_hub: ByteCount
    from_peers: ByteCount


# --- before a session, and beside it ------------------------------------------------------------


class VersionsRequest(Message, frozen=True):
    """Which protocols do you speak? This message and its answer never change."""


class Versions(Message, frozen=True):
    """The protocols of this hub, and the oldest release of echo-p2p that speaks one of them."""

    protocols: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=2**16)], ...], Meta(min_length=1, max_length=64)
    ]
    needs: Annotated[str, Meta(pattern=r"^[0-9][0-9A-Za-z.+-]{0,39}\Z")]


class MeasureRequest(Message, frozen=True):
    """Take `data`, which means nothing, and answer with so many bytes: how fast is the way?"""

    data: Annotated[memoryview, Meta(max_length=MAX_MEASURE_BYTES)]
    wanted: Annotated[int, Meta(ge=0, le=MAX_MEASURE_BYTES)]


class MeasureReply(Message, frozen=True):
    """As many bytes as were wanted; they mean nothing."""

    data: Annotated[memoryview, Meta(max_length=MAX_MEASURE_BYTES)]


class Refusal(Message, frozen=True):
    """Any request's other answer: a reason code and a sentence."""

    code: Code
    sentence: Sentence


HubRequest = (
    Hello
    | LatestRequest
    | LeaseRequest
    | LeaseReturn
    | StandbyRequest
    | Farewell
    | TurnRequest
    | Introduce
    | CreditRequest
    | Submit
    | BadChunkReport
    | Obtained
)
HubReply = (
    Latest | LeaseGrant | StandbyReply | Done | TurnReply | CreditReply | SubmitReply | Refusal
)
SwarmRequest = HaveRequest | ChunkRequest | PeersRequest
SwarmReply = HaveReply | ChunkReply | Elsewhere | PeersReply | Refusal
WatchEvent = Announcement | Heartbeat | Refusal

CONTROL_PROTOCOL = "/echo-p2p/control/1"
WATCH_PROTOCOL = "/echo-p2p/watch/1"
SWARM_PROTOCOL = "/echo-p2p/swarm/1"
VERSIONS_PROTOCOL = "/echo-p2p/versions/1"
MEASURE_PROTOCOL = "/echo-p2p/measure/1"
BULK_PROTOCOLS = frozenset({SWARM_PROTOCOL, MEASURE_PROTOCOL})
"""Protocols whose answers are chunks: they wait behind everything else, and for the rate limits."""

MAX_CONTROL_BYTES = 8 * MIB + 4 * KIB
MAX_SWARM_BYTES = MAX_CHUNK_BYTES + 4 * KIB

MAX_SIGNED_BYTES: dict[type[Signed], int] = {
    RunDescription: 8 * KIB,
    Manifest: 4 * MIB,
    RunRecord: 16 * KIB,
    Lease: 4 * MAX_TOKENS + MAX_STATE_BYTES + 8 * MAX_WRAP_TOKENS + 4 * KIB,
    Receipt: 4 * KIB,
    Credit: KIB,
    Voucher: KIB,
    Release: KIB,
    Submission: 8 * MIB - KIB,
}
"""Largest payload of each signed message, in bytes."""

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_decoders: dict[object, msgspec.msgpack.Decoder[object]] = {}


def encode(message: msgspec.Struct) -> bytes:
    """Serialise any message."""
    return _encoder.encode(message)


def decode(data: bytes, kind: type[T]) -> T:
    """Decode bytes from outside as `kind` (a message type or a union of them), or WireError."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(type=kind)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        name = getattr(kind, "__name__", "message of this protocol")
        raise WireError(f"{len(data)} bytes that are no {name}: {error}.") from error


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids as little-endian uint32."""
    return np.asarray(tokens, dtype="<u4").tobytes()


def unpack_tokens(data: bytes) -> list[int]:
    """Token ids from `pack_tokens`; WireError if the length is not a multiple of 4."""
    if len(data) % 4:
        raise WireError(f"{len(data)} bytes of token ids; their number must be a multiple of 4.")
    tokens: list[int] = np.frombuffer(data, dtype="<u4").tolist()
    return tokens


def sampled_tokens(rollout: Rollout) -> int:
    """How many of a rollout's tokens the policy sampled: all but those that were observed."""
    return len(rollout.tokens) // 4 - sum(end - start for start, end in rollout.observed)


def pack_logprobs(logprobs: Sequence[float]) -> bytes:
    """Log-probabilities as little-endian float32."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def unpack_logprobs(data: bytes) -> list[float]:
    """Log-probabilities from `pack_logprobs` (NaN and infinities come through: check them)."""
    if len(data) % 4:
        raise WireError(f"{len(data)} bytes of log-probs; their number must be a multiple of 4.")
    logprobs: list[float] = np.frombuffer(data, dtype="<f4").tolist()
    return logprobs
