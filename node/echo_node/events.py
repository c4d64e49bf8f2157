"""What a node tells the person, or the program, that started it.

With `--json` each event is one JSON object on a line; `event` names its type. Counts are totals
since the node started.
"""

from __future__ import annotations

import msgspec

from echo_p2p.rates import UNLIMITED


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str.lower):
    """Base of all events."""


class Step(Event, frozen=True):
    """What is being waited for now."""

    step: str


class Still(Event, frozen=True):
    """A step that takes long: what is still being waited for, and for how long already."""

    step: str
    elapsed_s: float


class Joined(Event, frozen=True):
    """A session with the hub began, for the first time or again. The limits are those in force."""

    run: str
    task: str
    node: str
    hub: str
    max_upload: str = UNLIMITED
    max_download: str = UNLIMITED


class Planned(Event, frozen=True):
    """How the run will be worked on; `needs` and `may_have` are bytes, on `place`."""

    sentence: str
    engine: str
    place: str
    dtype: str
    context: int
    max_sequences: int
    needs: int
    may_have: int


class Engine(Event, frozen=True):
    """The engine has loaded the base model."""

    name: str
    device: str
    dtype: str
    max_sequences: int


class Fetched(Event, frozen=True):
    """How far a download has come: the base model, or a version.

    Of `done_bytes`, `resumed_bytes` were on disk when it began, `elapsed_s` seconds ago. `left_s`
    is the time left at the present rate, None while nothing comes.
    """

    what: str
    done_bytes: int
    total_bytes: int
    from_hub_bytes: int
    from_peers_bytes: int
    resumed_bytes: int
    bytes_per_s: int
    elapsed_s: float
    left_s: float | None


class Version(Event, frozen=True):
    """A policy version became active."""

    version: int


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Groups, rollouts, tokens and bytes so far. `rejected`: groups by reason code.

    `bytes_saved`: by how much the deltas that came were smaller than what they stand for.
    """

    groups: int
    accepted: int
    rejected: dict[str, int]
    unsent: int
    rollouts: int
    tokens: int
    bytes_from_hub: int
    bytes_from_peers: int
    bytes_sent: int
    bytes_saved: int


class Progress(Event, Tally, frozen=True):
    """Sent every few seconds while there is a session.

    `running` answers are being generated, and have `running_tokens` tokens so far.
    """

    version: int | None
    rollouts_per_s: float
    tokens_per_s: float
    running: int = 0
    running_tokens: int = 0


class Trouble(Event, frozen=True):
    """Something failed that the node goes on from; with `retry_s`, when it tries again.

    `check`: the one of `echo-node doctor` that looks into it.
    """

    message: str
    retry_s: float | None = None
    check: str = ""


class Verdict(Event, frozen=True):
    """The hub found a group unfit that it had accepted; `code` and `message` say why."""

    code: str
    message: str


class Credited(Event, frozen=True):
    """What the hub's ledger says this node has given to the run so far; its `name`, if any."""

    tokens: int
    rollouts: int
    name: str


class Paused(Event, frozen=True):
    """Work stopped, or there are other reasons for that now.

    `codes` are those of `limits.rules`; `until` in Unix seconds, None if nobody can know.
    """

    codes: list[str]
    message: str
    until: float | None = None


class Resumed(Event, frozen=True):
    """Work goes on."""


class Standby(Event, frozen=True):
    """The hub keeps the node ready and lets others work.

    `until`: Unix seconds at which its turn may be expected, None if nobody can know.
    """

    message: str
    until: float | None = None


class OffStandby(Event, frozen=True):
    """The hub has work for the node again."""


class Note(Event, frozen=True):
    """Anything else worth a line."""

    message: str


class Summary(Event, Tally, frozen=True):
    """The last event."""

    reason: str
    wall_s: float
    max_upload: str = UNLIMITED
    max_download: str = UNLIMITED
