"""Options of memories that make no sense are refused before anything is built, with what to type instead."""

from __future__ import annotations

import pytest

from labrl.config.compose import compose, resolve
from labrl.errors import InputError
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
    "a burn-in that leaves nothing to learn from": (
        ["agent=recurrent_dqn", "agent.memory.sequence_length=16", "agent.memory.burn_in=16"],
        r"agent\.memory: burn_in must be less than sequence_length 16.*got 16 .*agent\.memory\.burn_in=8",
    ),
    "a sequence longer than what is kept of an environment": (
        ["agent=recurrent_dqn", "env.num_envs=4", "agent.memory.capacity=128", "agent.learning_starts=0"],
        r"agent\.memory\.capacity must be at least 200.*sequence_length 32.*got 128 .*capacity=200",
    ),
    "minibatches of parts of replayed sequences": (
        ["agent=recurrent_dqn", "agent.batch_size=40"],
        r"agent\.batch_size .*multiple of the 16 .*burn_in 16.*got 40 .*agent\.batch_size=48",
    ),
    "single transitions for an agent that replays sequences": (
        ["agent=recurrent_dqn", "agent/memory=prioritized"],
        r"agent\.memory: .*keeps single transitions.*learns from sequences .*agent/memory=sequences",
    ),
    "sequences for an agent that replays single transitions": (
        ["agent=dqn", "agent/memory=sequences"],
        r"agent\.memory: .*keeps sequences.*agent/memory=uniform or prioritized.*agent=recurrent_dqn",
    ),
    "a network without a memory for DQN with one": (
        ["agent=recurrent_dqn", "agent/network=wide"],
        r"agent\.network\.torso: .*has no memory.*agent/network=gru or lstm",
    ),
    "a compiled memory": (
        ["agent=recurrent_dqn", "meta.compile=true"],
        r"meta\.compile=true: networks with a memory are not compiled.*meta\.compile=false",
    ),
    "a memory inside a memory": (
        ["agent=recurrent_ppo", "agent/network@agent.network.torso=gru"],
        r"agent\.network\.torso\.torso: .*Recurrent has a memory of its own.*torso\.layers=2",
    ),
    "a torso inside that cannot read the observations": (
        ["agent=recurrent_ppo", "agent/network@agent.network.torso=nature_cnn"],
        r"NatureCNN needs images",
    ),
}


@pytest.mark.parametrize(("words", "told"), CASES.values(), ids=CASES)
def test_it_is_refused_with_the_way_out(words: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check(resolve(compose(words)))
