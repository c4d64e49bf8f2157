"""Copies of a run from which it goes on elsewhere, under the same key."""
