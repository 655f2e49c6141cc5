"""Trials: sessions side by side, processes and devices."""
