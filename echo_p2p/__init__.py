"""What hub and node both speak: identity, envelopes, messages, artifacts, network, sampling.

Invariants: nothing here knows the hub or the node, and nothing here imports torch at module load
(`sampling` uses it only when handed a tensor; the directory's child process is the one exception).
"""

__version__ = "0.1.0"

PROTOCOL = 2
"""Protocol version. Peers with another number refuse each other with a typed error."""
