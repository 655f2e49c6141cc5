"""Searching for good hyperparameters: what `hydra/sweeper=optuna` does."""
