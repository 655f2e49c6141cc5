"""Experiments: trials side by side, from a grid or a search, and the engines that they run on."""
