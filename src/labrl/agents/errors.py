"""What can go wrong inside an agent."""

from __future__ import annotations


class NonFiniteError(Exception):
    """A loss, a gradient or a weight is no longer a finite number: nothing that follows has a meaning."""

    def __init__(self, term: str, frame: int) -> None:
        super().__init__(
            f"{term} is not finite at frame {frame}. The last checkpoint before it is kept. "
            "Usual causes are a learning rate that is too high, rewards or observations of extreme size, and "
            "observations that are not finite, about which there is a warning above."
        )
        self.term = term
        self.frame = frame
