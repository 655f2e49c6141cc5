"""Trials: the sessions of one configuration, started, followed, resumed and repeated."""
