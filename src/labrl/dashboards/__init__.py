"""What shows a run elsewhere, from its folder alone: Weights & Biases, in a process of its own."""
