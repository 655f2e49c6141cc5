"""An example exploration strategy: the greedy action after adding normal noise to every value."""

import numpy as np
from numpy.typing import NDArray

from labrl.agents.parts.exploration import Exploration, Values


class PerturbedValues(Exploration):
    """Exploration in which actions are rarer the lower their value is."""

    def __init__(self, std: float) -> None:
        self._std = std

    def choose(self, values: Values, frame: int, generator: np.random.Generator) -> NDArray[np.int64]:
        """Return an action for each environment. [num_envs]"""
        return (values.compute() + self._std * generator.normal(size=values.shape)).argmax(1)
