"""labrl's sweeper for Hydra: `hydra/sweeper=optuna`."""
