"""What the machine has: accelerators, CPU, memory. Nothing here imports torch or an engine."""
