"""Explanations of wrong command lines, with what was probably meant."""
