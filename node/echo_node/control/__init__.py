"""Talking to a running node: a socket in its folder that only its user can open."""
