"""Algorithms: one file each, readable beside its paper."""
