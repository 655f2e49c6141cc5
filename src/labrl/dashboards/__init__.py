"""Weights & Biases, fed by a separate process that reads only the run folder."""
