"""Parts that agents share."""
