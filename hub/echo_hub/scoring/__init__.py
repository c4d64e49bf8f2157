"""Rewards and prompts, in processes that can be killed: here or on a Ray cluster."""
