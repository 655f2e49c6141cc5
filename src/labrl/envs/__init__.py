"""Environments: one protocol of explicit, seeded resets over every library."""
