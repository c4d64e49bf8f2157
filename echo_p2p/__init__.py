"""What hub and node both speak: identity, envelopes, messages, artifacts, network, sampling.

Invariants: nothing here knows the hub or the node, and nothing here imports torch at module load
(`sampling` uses it only when handed a tensor; the directory's child process is the one exception).
"""

__version__ = "0.1.0"

PROTOCOL = 2
"""Newest protocol version that this release speaks, and the one it asks for first."""

SPOKEN = frozenset({PROTOCOL})
"""All protocol versions that this release speaks; peers without one in common refuse each other."""

OLDEST_RELEASE = "0.1.0"
"""The oldest release of echo-p2p that speaks one of `SPOKEN`."""
