"""From a loss to new weights: flat parameters, gradients on several threads and ranks, optimizers."""
