"""The search for hyperparameters of `hydra/sweeper=optuna`."""
