"""Explanations of wrong command lines, with the probably intended ones."""
