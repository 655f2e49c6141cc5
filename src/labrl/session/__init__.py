"""One training run: the loop, and what hangs on its clock."""
