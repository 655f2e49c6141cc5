"""A run and an experiment on disk: folder, lock, checkpoints, tables of metrics, episodes, provenance."""
