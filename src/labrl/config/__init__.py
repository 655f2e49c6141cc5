"""Configuration: composed by Hydra, validated into the dataclasses that stand beside each component."""
