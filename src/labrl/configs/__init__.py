"""The configuration groups of labrl, as YAML; the wheel ships them with the code."""
