"""One training run: the loop and its callbacks."""
