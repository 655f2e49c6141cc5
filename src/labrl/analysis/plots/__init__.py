"""Figures of runs and experiments, for a paper: PNG and SVG."""
