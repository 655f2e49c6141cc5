"""Transitions that were collected elsewhere: by saved runs, or in Minari datasets."""
