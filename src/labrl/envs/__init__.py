"""Environments of every library behind one protocol with explicit, seeded resets."""
