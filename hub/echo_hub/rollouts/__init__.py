"""Leases out, rollouts in: who gets which, what is believed, and what is trained on."""
