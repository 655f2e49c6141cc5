"""A copy of a session's agent that acts in another process, with weights that it is handed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from labrl.agents.agent import Agent, build_agent
from labrl.agents.transforms import Transforms
from labrl.clock import Clock
from labrl.config.schema import TrialConfig
from labrl.learning.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import Streams
from labrl.workspace import Workspace


def acting_state(agent: Agent, transforms: Transforms, clock: Clock) -> dict[str, Any]:
    """All that decides how the agent acts now, apart from its streams: a copy, on the processor.

    Small beside the agent's whole state: neither optimizer nor memory.
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
    """Built as the session builds its own agent, so that its numbers are the same; it never learns."""

    def __init__(self, config: TrialConfig, index: int, seed: int, num_threads: int, spaces: Spaces) -> None:
        """index, seed, num_threads: of the session."""
        torch.set_num_threads(1)  # as in the session's process
        meta = config.meta
        compute = Compute.choose(meta.device, meta.precision, num_threads, index, meta.num_gpus)
        self.clock = Clock(config.env.config.max_frame)
        self.transforms = Transforms.build(config.transforms, spaces, agent=config.agent)
        self.agent = build_agent(
            config.agent,
            spaces=spaces,
            clock=self.clock,
            streams=Streams(seed),
            compute=dataclasses.replace(
                compute, workspace=Workspace(acting_only=True), compiled=meta.compile
            ),
        )

    def load(self, state: Mapping[str, Any]) -> None:
        """Act as `acting_state` says from now on."""
        self.clock.load_state_dict(state["clock"])
        self.transforms.load_state_dict(state["transforms"])
        modules = self.agent.acting_modules()
        for name, weights in state["modules"].items():
            modules[name].load_state_dict(weights)

    def close(self) -> None:
        """End the agent's threads."""
        self.agent.close()
