"""Experiment trackers: every metric of every update, for wandb, trackio or tensorboard.

Each is a child process (`process`): what it prints, needs, breaks or hangs in is never the hub's.
`follow` hands it the metrics; a tracker that fails is tried again, and given up after some times.
"""
