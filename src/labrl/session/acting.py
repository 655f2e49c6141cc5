"""A copy of a session's agent that acts in another process, with weights that it receives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from labrl.agents.agent import Agent
from labrl.agents.make import build_agent, learns_faster_on_gpu
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute, set_deterministic, use_one_thread
from labrl.memory.workspace import Workspace
from labrl.seeding import Streams
from labrl.spaces import Spaces, sees_images


def acting_state(agent: Agent, transforms: Transforms, clock: Clock) -> dict[str, Any]:
    """Return a copy, on the CPU, of the state that determines how the agent acts, without its random streams.

    The copy is small because it contains neither the optimizer nor the replay buffer.
    """
    return {
        "modules": {
            name: {key: value.detach().cpu().clone() for key, value in module.state_dict().items()}
            for name, module in agent.acting_modules().items()
        },
        "transforms": transforms.state_dict(),
        "clock": clock.state_dict(),
    }


class ActingCopy:
    """A copy of a session's agent, transforms and clock that never learns."""

    def __init__(
        self, config: TrialConfig, spaces: Spaces, seed: int, compute: Compute, num_ranks: int = 1
    ) -> None:
        """seed: seed of the agent's random streams; num_ranks: number of ranks; the copied agent is that of
        rank 0."""
        self.clock = Clock(config.env.config.max_frame)
        self.transforms = Transforms.build(config.transforms, spaces, agent=config.agent)
        self.agent = build_agent(
            config.agent,
            num_ranks,
            spaces=self.transforms.spaces,
            clock=self.clock,
            streams=Streams(seed),
            # The copy acts with any number of environments, and each number would need its own CUDA graph.
            compute=dataclasses.replace(
                compute,
                workspace=Workspace(acting_only=True),
                kernels=config.meta.kernels == "auto",
                record=None,
            ),
        )

    @classmethod
    def of_session(
        cls, config: TrialConfig, spaces: Spaces, seed: int, index: int, num_threads: int
    ) -> ActingCopy:
        """Return a copy that computes, in another process, the same numbers as the session with this
        index."""
        use_one_thread()  # as in the session's process
        meta = config.meta
        on_gpu = learns_faster_on_gpu(config, sees_images(spaces.observation))
        compute = Compute.choose(meta.device, meta.precision, num_threads, index, meta.num_gpus, on_gpu)
        set_deterministic(meta.deterministic, compute.device, meta.compile)
        return cls(config, spaces, seed, dataclasses.replace(compute, compiled=meta.compile))

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a result of `acting_state`."""
        self.clock.load_state_dict(state["clock"])
        self.transforms.load_state_dict(state["transforms"])
        modules = self.agent.acting_modules()
        for name, weights in state["modules"].items():
            modules[name].load_state_dict(weights)

    def close(self) -> None:
        """Stop the agent's threads."""
        self.agent.close()
