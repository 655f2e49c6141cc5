"""Weights & Biases, fed from the run folder alone by a process of its own."""
