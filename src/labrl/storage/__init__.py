"""What a run writes: its folder, checkpoints, tables of metrics, provenance."""
