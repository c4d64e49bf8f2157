"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# the same examples in every run, and no verdict that hangs on how fast this machine is now
settings.register_profile("echo", deadline=None, derandomize=True)
settings.load_profile("echo")
