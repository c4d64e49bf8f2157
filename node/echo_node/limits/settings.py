"""What a volunteer allows: the fields, their defaults and why those; read from `node.toml`.

The defaults are for a person's own computer, in use while the node works: it stays responsive (half
of the cores, low priority), quiet enough (a temperature at which it pauses), mobile (no work on
battery) and free for games (nothing while another program uses the graphics card).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field

from echo_node.limits.amounts import parse_amount, parse_size
from echo_node.limits.hours import check_hours
from echo_p2p.errors import ConfigError
from echo_p2p.rates import UNLIMITED, parse_rate
from echo_p2p.toml import Strict


def _checked(parse: Any) -> AfterValidator:
    """A validator that keeps the text and only sees whether it can be read."""

    def check(text: Any) -> Any:
        try:
            parse(text)
        except ConfigError as error:
            raise ValueError(str(error).rstrip(".")) from error
        return text

    return AfterValidator(check)


def _unless_unlimited(text: str) -> None:
    if text != UNLIMITED:
        parse_size(text)


def _download(text: str) -> None:
    if parse_rate(text) == 0:
        raise ConfigError("a node cannot do without fetching the model and its versions.")


def _zone(name: str) -> None:
    if name:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ConfigError(f"{name!r} is no time zone.", fix="Like Europe/Berlin.") from error


def _no_blanks(names: tuple[str, ...]) -> None:
    if any(not name.strip() for name in names):
        raise ConfigError("a program's name is empty.")


Program = Annotated[str, Field(max_length=200)]
Temperature = Annotated[float, Field(ge=30, le=120)]


class Limits(Strict):
    """`[limits]` in `node.toml`. Each can be changed while the node runs."""

    # --- when -----------------------------------------------------------------------------------

    only_when_idle: bool = False
    """Work only while nobody uses the computer. Whoever types `join` wants to see it work: off."""

    idle_after: Annotated[float, Field(ge=0.1, le=1440)] = 5.0
    """Minutes without keyboard and mouse after which nobody uses it."""

    hours: Annotated[tuple[str, ...], Field(max_length=50), _checked(check_hours)] = ()
    """Weekly hours in which it may work, like "mon-fri 19:00-07:00"; none: at all times."""

    time_zone: Annotated[str, _checked(_zone)] = ""
    """Of `hours`, and of the days and months of data; like Europe/Berlin. Empty: the computer's."""

    on_battery: bool = False
    """Work on battery too. It would be empty in an hour: off."""

    beside_gpu_programs: bool = False
    """Work while another program uses the graphics card. A game would stutter: off."""

    pause_for: Annotated[tuple[Program, ...], Field(max_length=100), _checked(_no_blanks)] = ()
    """Names of programs; while one of them runs, the node pauses."""

    max_cpu_temperature: Temperature = 90.0
    """Degrees Celsius over which it pauses, until it is 5 degrees cooler. Laptops brake at 95."""

    max_gpu_temperature: Temperature = 83.0
    """Degrees Celsius over which it pauses, until it is 5 degrees cooler. Cards brake at 83."""

    # --- how much -------------------------------------------------------------------------------

    gpu_memory: Annotated[str, _checked(parse_amount)] = "80%"
    """Most memory of the graphics card, a size or a share: the screen needs some."""

    gpu_duty: Annotated[int, Field(ge=5, le=100)] = 100
    """Percent of the time for which the engine computes; it rests in between. Less is quieter."""

    cpu_threads: Annotated[int, Field(ge=0, le=1024)] = 0
    """CPU threads of the engine. 0: half of the cores, so that the other half stays yours."""

    priority: Literal["idle", "low", "normal"] = "low"
    """Against other programs: `low` gives way to all of them (nice 10), `idle` wholly (nice 19)."""

    ram: Annotated[str, _checked(parse_amount)] = "50%"
    """Most memory of node and engine together, a size or a share of the computer's."""

    disk: Annotated[str, _checked(parse_size)] = "50GB"
    """Most disk space for models and their versions."""

    disk_left_free: Annotated[str, _checked(parse_size)] = "5GB"
    """Disk space that is left to others, even where `disk` would allow more."""

    upload: Annotated[str, _checked(parse_rate)] = UNLIMITED
    """Most to send, like 20mbit; 0 gives no chunks to other nodes."""

    download: Annotated[str, _checked(_download)] = UNLIMITED
    """Most to receive, like 50mbit."""

    data_per_day: Annotated[str, _checked(_unless_unlimited)] = UNLIMITED
    """Most to send and receive in a day; then it pauses until midnight."""

    data_per_month: Annotated[str, _checked(_unless_unlimited)] = UNLIMITED
    """Most to send and receive in a month; then it pauses until the next."""

    @property
    def zone(self) -> ZoneInfo | None:
        """None: the computer's own."""
        return ZoneInfo(self.time_zone) if self.time_zone else None

    @property
    def nice(self) -> int:
        """The priority as Unix counts it."""
        return {"idle": 19, "low": 10, "normal": 0}[self.priority]

    def threads(self, cores: int) -> int:
        """CPU threads of the engine on so many cores."""
        return self.cpu_threads or max(1, cores // 2)


def size_or_none(text: str) -> int | None:
    """Bytes; None for `unlimited`."""
    return None if text == UNLIMITED else parse_size(text)


class NodeConfig(Strict):
    """`node.toml`."""

    limits: Limits = Limits()
    """What the node may do, and when."""
