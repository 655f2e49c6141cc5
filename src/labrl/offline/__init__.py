"""Transitions that were collected elsewhere: saved runs and Minari datasets."""
