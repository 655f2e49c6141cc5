"""The files of a run: folder, checkpoints, tables of metrics, provenance."""
