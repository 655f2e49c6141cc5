"""From a loss to new weights: learners, optimizers, worker threads, ranks, precision and kernels."""
