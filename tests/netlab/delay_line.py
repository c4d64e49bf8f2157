"""A length of cable: `delay_line.py DEVICE SECONDS` holds every packet of a TUN device so long.

What the kernel routes into the device comes out of it again SECONDS later, in the same order. It
ends when its standard input does. Packets pass whole as the kernel batches them (up to 64 KiB,
segmentation offload), so that a few thousand a second carry more than the programs under test do.
It runs at a higher priority than those: cables do not slow down when computers are busy.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
MAX_PACKET = 65536 + 64
AT_ONCE = 64  # packets read before those that are due are sent
PRIORITY = -15


def open_device(name: str) -> int:
    """A TUN device that takes and gives packets as the kernel batches them."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
    return device


def hold(device: int, delay_s: float) -> None:
    """Pass everything on until standard input ends."""
    held: deque[tuple[float, bytes]] = deque()
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([device, sys.stdin], [], [], wait)
        if sys.stdin in ready:
            return
        if ready:
            take(device, held, delay_s)
        while held and held[0][0] <= time.monotonic():
            os.write(device, held.popleft()[1])


def take(device: int, held: deque[tuple[float, bytes]], delay_s: float) -> None:
    for _ in range(AT_ONCE):
        try:
            packet = os.read(device, MAX_PACKET)
        except BlockingIOError:
            return
        held.append((time.monotonic() + delay_s, packet))


def main() -> None:
    device = open_device(sys.argv[1])
    os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    print("ready", flush=True)
    hold(device, float(sys.argv[2]))


if __name__ == "__main__":
    main()
