"""Which rank a process is, among how many, and where they meet. No torch here."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Seat:
    """One rank's place. `listener` is the first rank's: a socket on loopback, not yet served."""

    rank: int
    size: int
    port: int
    listener: socket.socket | None = None

    @classmethod
    def first(cls, size: int) -> Seat:
        """The place of rank 0, with a port that nobody else has."""
        listener = socket.create_server((LOOPBACK, 0), backlog=size)
        return cls(0, size, listener.getsockname()[1], listener)

    def beside(self, rank: int) -> Seat:
        """The place of another rank in the same learner."""
        return replace(self, rank=rank, listener=None)

    def as_arguments(self) -> list[str]:
        """For the command line of that rank."""
        return [str(self.rank), str(self.size), str(self.port)]

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Seat:
        """From its command line."""
        rank, size, port = map(int, arguments)
        return cls(rank, size, port)


def stay_on_loopback() -> None:
    """Have the collectives of this process listen on the loopback interface and on no other."""
    names = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.setdefault(variable, names[0])
