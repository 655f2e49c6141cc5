"""Explanations of wrong command lines, with the command lines that were probably intended."""
