"""Modules built from observation and action spaces, and how their gradients are computed."""
