"""Trials: the sessions of one configuration, started, followed, resumed, repeated and played."""
