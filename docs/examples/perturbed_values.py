"""An exploration of one's own: the best action after normal noise on every value."""

import numpy as np
from numpy.typing import NDArray

from labrl.agents.parts.exploration import Exploration, Values


class PerturbedValues(Exploration):
    """The larger the difference of two values, the rarer the worse action."""

    def __init__(self, std: float) -> None:
        self._std = std

    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Choose for each environment. [num_envs]"""
        return (values.compute() + self._std * generator.normal(size=values.shape)).argmax(1)
