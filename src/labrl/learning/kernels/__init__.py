"""Forward and backward passes of multi-layer perceptrons on the CPU, derived by hand."""
