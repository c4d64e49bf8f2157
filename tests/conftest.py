"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# the same examples in every run, and no verdict that hangs on how fast this machine is now
settings.register_profile(
    "echo", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("echo")
