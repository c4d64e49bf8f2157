"""What a computer says of itself: one file for each kind of sensor, each says None for unknown."""
