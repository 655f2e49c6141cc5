"""Sending of runs to Weights & Biases, by a separate process that reads only the run folder."""
