"""Tests of invalid options of recurrent agents: each is refused with an override that avoids it."""

from __future__ import annotations

import re

import pytest
from refusals import refused

from labrl.config.compose import compose, resolve
from labrl.errors import Code, InputError
from labrl.trial.create import check

CASES: dict[str, tuple[list[str], str, Code | None, list[str]]] = {
    "recurrent network for an agent that replays single transitions": (
        ["agent=sac", "env=pendulum", "agent/network=lstm"],
        "agent.network.torso",
        "unsupported",
        ["agent=recurrent_ppo"],
    ),
    "sequence length with a plain network in recurrent_ppo": (
        ["agent=recurrent_ppo", "agent/network=mlp"],
        "agent.sequence_length",
        "contradiction",
        ["agent.sequence_length=null", "agent/network=gru"],
    ),
    "sequence length with a plain network in ppo": (
        ["agent=ppo", "agent.sequence_length=8"],
        "agent.sequence_length",
        "contradiction",
        ["agent.sequence_length=null", "agent/network=gru"],
    ),
    "minibatch smaller than a rollout without sequences": (
        ["agent=ppo", "agent/network=gru", "agent.horizon=64", "agent.batch_size=32"],
        "agent.batch_size",
        "contradiction",
        ["agent.horizon=64", "32", "agent.sequence_length=32", "agent.batch_size=64", "agent=recurrent_ppo"],
    ),
    "unknown kind of recurrent network": (
        ["agent=recurrent_ppo", "agent.network.torso.kind=rnn"],
        "agent.network.torso.kind",
        "unknown-option",
        ["gru", "lstm", "rnn"],
    ),
    "sequence length that does not divide the rollout": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=24"],
        "agent.sequence_length",
        "contradiction",
        ["agent.horizon=64", "24", "agent.sequence_length=16"],
    ),
    "sequence longer than the rollout": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=128"],
        "agent.sequence_length",
        "contradiction",
        ["agent.horizon=64", "128", "agent.sequence_length=64"],
    ),
    "minibatch smaller than a sequence": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=32", "agent.batch_size=16"],
        "agent.batch_size",
        "contradiction",
        ["agent.sequence_length=32", "16", "agent.batch_size=32", "agent.sequence_length=16"],
    ),
    "whole episodes for a recurrent agent": (
        ["agent=recurrent_a2c", "agent.horizon=null", "agent.episodes=4"],
        "agent.episodes",
        "unsupported",
        ["4", "agent.episodes=null", "agent.horizon=16"],
    ),
    "self-imitation for a recurrent agent": (
        ["agent=recurrent_ppo", "agent/self_imitation=replay"],
        "agent.self_imitation",
        "unsupported",
        ["agent/self_imitation=none"],
    ),
    "burn-in as long as the sequence": (
        ["agent=recurrent_dqn", "agent.memory.sequence_length=16", "agent.memory.burn_in=16"],
        "agent.memory.burn_in",
        "contradiction",
        ["burn_in", "sequence_length", "16", "8"],
    ),
    "sequence too long for the buffer of one environment": (
        ["agent=recurrent_dqn", "env.num_envs=4", "agent.memory.capacity=128", "agent.learning_starts=0"],
        "agent.memory.capacity",
        "contradiction",
        ["sequence_length", "32", "128", "agent.memory.capacity=200"],
    ),
    "minibatch that is no multiple of a replayed sequence": (
        ["agent=recurrent_dqn", "agent.batch_size=40"],
        "agent.batch_size",
        "contradiction",
        ["burn_in", "16", "40", "agent.batch_size=48"],
    ),
    "buffer of transitions for an agent that replays sequences": (
        ["agent=recurrent_dqn", "agent/memory=prioritized"],
        "agent.memory",
        "unsupported",
        ["agent/memory=sequences", "agent=dqn"],
    ),
    "buffer of sequences for an agent that replays transitions": (
        ["agent=dqn", "agent/memory=sequences"],
        "agent.memory",
        "unsupported",
        ["agent/memory=uniform", "agent/memory=prioritized", "agent=recurrent_dqn"],
    ),
    "plain network for recurrent_dqn": (
        ["agent=recurrent_dqn", "agent/network=mlp_256"],
        "agent.memory",
        "unsupported",
        ["agent/network=gru"],
    ),
    "compiled recurrent network": (
        ["agent=recurrent_dqn", "meta.compile=true"],
        "meta.compile",
        "unsupported",
        ["meta.compile=false"],
    ),
    "recurrent network inside a recurrent network": (
        ["agent=recurrent_ppo", "agent/network@agent.network.torso=gru"],
        "agent.network.torso.torso",
        "unsupported",
        ["agent.network.torso.layers=2"],
    ),
    "inner torso unsuited to the observations": (
        ["agent=recurrent_ppo", "agent/network@agent.network.torso=nature_cnn"],
        "agent.network.torso",
        "unsupported",
        [],
    ),
}


@pytest.mark.parametrize(("overrides", "key", "code", "named"), CASES.values(), ids=CASES)
def test_invalid_option_is_refused_with_an_alternative(
    overrides: list[str], key: str, code: Code | None, named: list[str]
) -> None:
    with refused(code, key, *named):
        check(resolve(compose(overrides)))


ALLOWED = {
    "PPO with a recurrent network learns from whole rollouts": [
        "agent=ppo",
        "agent/network=gru",
        "agent.horizon=64",
        "agent.batch_size=64",
    ],
    "PPO with a recurrent network and a sequence": [
        "agent=ppo",
        "agent/network=lstm",
        "agent.sequence_length=16",
    ],
    "A2C with a recurrent network": ["agent=a2c", "agent/network=gru"],
    "recurrent A2C with a plain network": ["agent=recurrent_a2c", "agent/network=mlp"],
}


@pytest.mark.parametrize("overrides", ALLOWED.values(), ids=ALLOWED)
def test_on_policy_agents_accept_plain_and_recurrent_networks(overrides: list[str]) -> None:
    check(resolve(compose(overrides)))


@pytest.mark.parametrize("overrides", [[], ["agent.sequence_length=64"]])
def test_every_alternative_for_a_minibatch_smaller_than_a_sequence_is_accepted(overrides: list[str]) -> None:
    typed = ["env=pong", "agent/network=lstm", *overrides]
    with pytest.raises(InputError) as caught:
        check(resolve(compose(typed)))
    alternatives = re.findall(r"agent[.\w]*=\w+", str(caught.value).partition("Set ")[2])
    assert len(alternatives) > 1
    for alternative in alternatives:
        check(resolve(compose([*typed, alternative])))
