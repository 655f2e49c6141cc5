"""Parts that several agents hold."""
