"""Runs and experiments on disk: folders, locks, checkpoints, tables of metrics, episodes and provenance."""
