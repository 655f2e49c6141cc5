"""The way from a loss to new weights: flat parameters, gradients on threads and ranks, optimizers."""
