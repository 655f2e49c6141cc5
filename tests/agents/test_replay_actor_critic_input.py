"""Tests of unsupported options of off-policy actor-critics: each is refused with its key and alternatives."""

from __future__ import annotations

import pytest
from refusals import refused

from labrl.config.compose import compose, resolve
from labrl.errors import Code


@pytest.mark.parametrize(
    ("overrides", "key", "code", "named"),
    [
        (["agent=td3", "agent.policy_delay=0"], "agent.policy_delay", "range", ["1"]),
        (["agent=td3", "agent.target_noise=-1"], "agent.target_noise", "range", ["0"]),
        (["agent=td3", "agent.noise.std=-0.1"], "agent.noise.std", "range", ["0"]),
        (["agent=td3", "agent/noise=pink"], "agent/noise", "unknown-option", ["ornstein_uhlenbeck"]),
        (["agent=sac", "agent.temperature=-1"], "agent.temperature", "range", ["0"]),
        (["agent=sac", "agent.initial_temperature=0"], "agent.initial_temperature", "range", ["0"]),
        (["agent=sac", "agent.target.tau=2"], "agent.target.tau", "range", ["1", "2"]),
        (["agent=sac", "agent.policy_delay=2"], "agent.policy_delay", "unknown-key", []),
        (["agent=crossq", "agent.optimizer.beta1=1.0"], "agent.optimizer.beta1", "range", ["1"]),
    ],
)
def test_invalid_values_are_refused_with_the_allowed_ones(
    overrides: list[str], key: str, code: Code | None, named: list[str]
) -> None:
    with refused(code, key, *named):
        resolve(compose(["env=pendulum", "preset=none", *overrides]))
