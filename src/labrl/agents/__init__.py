"""Agents: one file for each algorithm, which reads like its paper."""
