"""Who may ask at all: how many keys one network address may bring, how fast one may be wrong. Pure.

New keys cost nothing, so what an address can do with many of them is bounded: an address brings at
most so many keys within `KEY_MEMORY_S`; an IPv6 address stands for its /64 network, which is what
one subscriber has. Loopback is not counted. What is rejected costs the hub a signature check and a
line in its ledger, so each key has an allowance of rejections, and one of other requests; when it
is used up, what it sends waits its turn, and slows nobody else down.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

KEY_MEMORY_S = 3600.0
_MOST_NETWORKS = 20_000
_MOST_KEYS = 20_000


def network_of(address: str) -> str | None:
    """What an IP address counts as; None if it is not counted (loopback, or not known)."""
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return None
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = mapped or ip
    if ip.is_loopback:
        return None
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


class KeysPerAddress:
    """The keys that each network used of late."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._networks: OrderedDict[str, dict[bytes, float]] = OrderedDict()

    def admit(self, key: bytes, address: str, now: float) -> bool:
        """Note that a key was used from an address; False if it is one too many."""
        network = network_of(address)
        if network is None:
            return True
        keys = self._networks.setdefault(network, {})
        self._networks.move_to_end(network)
        if key not in keys and len(keys) >= self._most:
            for old in [one for one, at in keys.items() if at < now - KEY_MEMORY_S]:
                del keys[old]
            if len(keys) >= self._most:
                return False
        keys[key] = now
        while len(self._networks) > _MOST_NETWORKS:
            self._networks.popitem(last=False)
        return True


class Allowances:
    """An allowance for each key: `burst` at once, filled up again at `per_s`."""

    def __init__(self, *, burst: float, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._used: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    def take(self, key: bytes, now: float) -> float:
        """Something came: how many seconds it has to wait."""
        used = self._used_by(key, now) + 1.0
        self._used[key] = (used, now)
        self._used.move_to_end(key)
        while len(self._used) > _MOST_KEYS:
            self._used.popitem(last=False)
        return max(0.0, used - self._burst) / self._per_s

    def refund(self, key: bytes, now: float) -> None:
        """It was accepted: it costs nothing."""
        self._used[key] = (max(0.0, self._used_by(key, now) - 1.0), now)

    def _used_by(self, key: bytes, now: float) -> float:
        used, at = self._used.get(key, (0.0, now))
        return max(0.0, used - max(0.0, now - at) * self._per_s)
