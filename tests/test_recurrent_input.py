"""Options of memories that make no sense are refused before anything is built, with what to type instead."""

from __future__ import annotations

import pytest

from labrl.config.compose import compose, resolve
from labrl.config.errors import ConfigError
from labrl.lab.trial import check

CASES = {
    "a network with a memory for an agent without one": (
        ["agent=ppo", "agent/network=gru"],
        r"agent\.network\.torso: .*Recurrent has a memory.*agent=recurrent_ppo",
    ),
    "the same for one that replays single steps": (
        ["agent=sac", "env=pendulum", "agent/network=lstm"],
        r"agent\.network\.torso: .*Recurrent has a memory.*agent=recurrent_ppo",
    ),
    "an agent with a memory, and a network without": (
        ["agent=recurrent_ppo", "agent/network=mlp"],
        r"agent\.network\.torso: .*MLP has no memory.*agent/network=gru or lstm.*agent=ppo",
    ),
    "a sequence for an agent that has none": (
        ["agent=ppo", "agent.sequence_length=8"],
        r"agent\.sequence_length",
    ),
    "a memory that torch does not have": (
        ["agent=recurrent_ppo", "agent.network.torso.kind=rnn"],
        r"agent\.network\.torso\.kind .*'gru'.*'lstm'.*rnn",
    ),
    "sequences that do not fill the rollout": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=24"],
        r"agent\.sequence_length must divide agent\.horizon 64, got 24 .*agent\.sequence_length=(16|32)",
    ),
    "a sequence longer than the rollout": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=128"],
        r"agent\.sequence_length must divide agent\.horizon 64, got 128 .*agent\.sequence_length=64",
    ),
    "minibatches of parts of sequences": (
        ["agent=recurrent_ppo", "agent.horizon=64", "agent.sequence_length=32", "agent.batch_size=16"],
        r"agent\.batch_size .* multiple of agent\.sequence_length 32, got 16 .*agent\.batch_size=32",
    ),
    "whole episodes for an agent that learns from sequences": (
        ["agent=recurrent_a2c", "agent.horizon=null", "agent.episodes=4"],
        r"agent\.episodes: .*got 4.*agent\.horizon=16",
    ),
    "self-imitation of single steps": (
        ["agent=recurrent_ppo", "agent/self_imitation=replay"],
        r"agent\.self_imitation .*agent/self_imitation=none",
    ),
    "a torso inside that cannot read the observations": (
        ["agent=recurrent_ppo", "agent/network@agent.network.torso=nature_cnn"],
        r"NatureCNN needs images",
    ),
}


@pytest.mark.parametrize(("words", "told"), CASES.values(), ids=CASES)
def test_it_is_refused_with_the_way_out(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(resolve(compose(words)))
