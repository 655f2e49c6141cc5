"""What a person mistypes is refused with the full key, what is allowed, and the nearest right spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from labrl.config.compose import compose, resolve
from labrl.errors import InputError


def refused(*overrides: str) -> str:
    with pytest.raises(InputError) as error:
        resolve(compose(list(overrides)))
    return str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("agent.lrr=1", "agent.lrr: no such key. Did you mean agent.lr?"),
        ("lr=1", "lr: no such key. Did you mean agent.lr?"),
        ("agent.discount=0.9", "agent.gamma"),
        ("total_timesteps=1000", "env.max_frame"),
        ("max_episode_steps=10", "env.max_episode_steps"),
        ("max_frame=1", "max_frame: no such key. Did you mean env.max_frame?"),
        ("agent.network.torso.hidden=[1]", "Did you mean agent.network.torso.mlp.hidden?"),
        ("agent.network.torso.zzz=[1]", "Known there: agent.network.torso._target_, agent.network.torso.mlp"),
        ("agnet=ppo", "agnet: no such key. Did you mean agent?"),
        (
            "env.kwargs={gravity: -5}",
            "env.kwargs.gravity: no such key; groups of keys are merged. To add to this",
        ),
        (
            "agent/memory=uniform",
            "agent/memory: agent=ppo has no such part; these have one: c51, crossq, ddpg, double_dqn, dqn,",
        ),
        ("agent/noise=gaussian", "agent/noise: agent=ppo has no such part; these have one: ddpg, td3."),
        ("agent/netwrk=mlp", "agent/netwrk: no such group. Did you mean agent/network?"),
        ("agent=pppo", "agent=pppo: no such option. Did you mean agent=ppo?"),
        ("env=ponk", "env=ponk: no such option. Did you mean env=pong? labrl-envs lists all"),
        ("env=ALE/Pong-v5", "env=ALE/Pong-v5: no such option. Did you mean env=pong? labrl-envs lists all"),
        ("env=MsPacmanNoFrameskip-v4", "no such option. Did you mean env=ms_pacman? labrl-envs lists all"),
        ("env=cartpol", "Did you mean env=cartpole?"),
        ("agent=a3c", "Did you mean agent=a2c?"),
        ("agent=pp0", "Did you mean agent=ppo?"),
        ("agent=td4", "Did you mean agent=td3?"),
        ("env=pon", "Did you mean env=pong?"),
        ("meta=fast", "Did you mean meta=fast_atari?"),
        ("meta=fast_atary", "meta=fast_atary: no such option. Did you mean meta=fast_atari?"),
        ("preset=ppo_cartpol", "Did you mean preset=ppo_cartpole?"),
        (
            "experiment=slm_lab/cartpol",
            "no such option. Did you mean experiment=slm_lab/cartpole? Known: atari/v",
        ),
        ("experiment=slm_lab", "experiment=slm_lab: no such option. Did you mean experiment=slm_lab/"),
        ("experiment=best", "<folder>/experiment/best.yaml, are found with --config-dir <folder>."),
        ("agent=3", "agent=3: agent must be one of a2c, c51, crossq,"),
        ("hydra.run.dir=null", "hydra.run.dir=null: it cannot be null; give it a value"),
        ("hydra.run.dirr=x", "hydra.run.dirr: no such key. Did you mean hydra.run.dir?"),
        ("callbacks.mine=1", "callbacks.mine: no such key. To add it there write +callbacks.mine=<value>."),
        (
            "agent.self_imitation.updates=3",
            "no such key. First choose one: agent/self_imitation=none, agent/self_imitation=replay.",
        ),
        ("+agent.horizn=4", "agent.horizn: no such key. Did you mean agent.horizon?"),
        ("+mine=4", "mine: no such key."),
        ("+resum=latest", "+resum=latest: no such key. Did you mean +resume=latest?"),
        ("+enjoi=latest", "+enjoi=latest: no such key. Did you mean +enjoy=latest?"),
        ("resum=latest", "resum: no such key. Did you mean +resume?"),
        ("~env", "agent and env must each be chosen"),
    ],
)
def test_misspelt_words_name_the_nearest(override: str, message: str) -> None:
    assert message in refused(override)


def test_a_key_below_what_another_word_took_away_names_that_word() -> None:
    assert "agent.lr=null has left no keys there: take one" in refused("agent.lr=null", "agent.lr.start=3")


def test_a_plus_before_a_key_that_exists_is_shown_to_be_too_much() -> None:
    message = refused("env=lunar_lander", "+wandb.mode=online")
    assert message == "+wandb.mode: there is such a key; write it without the plus, wandb.mode=<value>"


def test_a_key_of_other_agents_is_said_to_be_theirs() -> None:
    message = refused("agent=dqn", "agent.horizon=5")
    assert message.startswith(
        "agent.horizon: no such key. agent=dqn has none; these have one: a2c, ppo, recurrent_a2c, "
    )
    assert "Did you mean" not in message
    assert "agent=ppo has none; these have one: crossq, sac." in refused("agent.target_entropy=1")


def mistaken(*overrides: str) -> InputError:
    with pytest.raises(InputError) as error:
        resolve(compose(list(overrides)))
    return error.value


@pytest.mark.parametrize(
    ("override", "code", "allowed"),
    [
        ("env.num_envs=0", "range", "1"),
        ("env.num_envs=many", "type", "whole number"),
        ("agent.gamma=1.5", "range", "1"),
        ("agent.log_std_init=11", "range", "10"),
        ("agent.lr=fast", "type", "linear"),
        ("agent.normalize_advantage=1", "type", "true"),
        ("meta.device=gpu", "unknown-option", "meta.device=cpu"),
        ("meta.distributed=true", "unknown-option", "'shared'"),
        ("seed=-1", "range", "0"),
        ("env.vectorization=threads", "unknown-option", "'sync'"),
        ("agent._target_=labrl.agents.ppo.PPOO", "target", "PPO"),
        ("+callbacks.mine=1", "type", "_target_"),
        ("agent.network.head_activation=relu", "unknown-option", "agent.network.head_activation=ReLU"),
        ("agent.network.torso.mlp.activation=Foo", "unknown-option", "'CELU'"),
        ("agent.network.torso.mlp.activation=Linear", "unknown-option", "'Tanh'"),
        ("agent.network.torso.mlp.activation=Softmax", "unknown-option", "'Tanh'"),
        ("agent.network.torso.mlp.activation=RReLU", "unknown-option", "'Tanh'"),
    ],
)
def test_wrong_values_name_what_is_allowed(override: str, code: str, allowed: str) -> None:
    error = mistaken(override)
    key, _, value = override.lstrip("+").partition("=")
    assert (error.code, error.key) == (code, key)
    assert allowed in str(error)
    assert value in str(error)


@pytest.mark.parametrize(
    ("override", "key", "named"),
    [
        ("agent.batch_size=100", "agent.batch_size", "agent.batch_size=128"),
        ("agent.batch_size=100000", "agent.batch_size", "agent.batch_size=256"),
        ("env.max_frame=100", "env.max_frame", "256"),
    ],
)
def test_contradictions_name_both_sides_and_the_way_out(override: str, key: str, named: str) -> None:
    message = str(mistaken("agent.horizon=32", override))
    assert key in message
    assert named in message


@pytest.mark.parametrize("bad", ["agent.lr=[1,", "agent.lr", "agent.lr={a:", "=3"])
def test_bad_syntax_shows_how_to_write_it(bad: str) -> None:
    message = refused(bad)
    assert message.startswith(f"{bad}: cannot be read.")
    assert "key=value" in message


def test_what_takes_part_in_a_choice_cannot_be_taken_away() -> None:
    assert refused("agent=a2c", "~env").startswith("agent and env must each be chosen")
    assert refused("agent=a2c", "~preset").endswith("to leave presets out write preset=none")


TAKEN_AWAY = {
    "~agent.lr": "agent.lr=",
    "~agent.target_kl": "agent.target_kl=null",
    "~agent.network": "agent/network=",
    "~agent/network": "agent.network.torso=",
    "~agent.network.torso.mlp.hidden": "agent.network.torso.mlp.hidden=",
    "~agent.optimizer.eps": "agent.optimizer.eps=",
    "~env.num_envs": "env.num_envs=",
    "~env.max_frame": "env.max_frame=",
    "~meta": "meta=",
    "~meta.log_frequency": "meta.log_frequency=",
    "~wandb": "wandb=",
    "~search": "search=",
    "~seed": "seed=",
}


@pytest.mark.parametrize("word", TAKEN_AWAY)
def test_a_key_that_is_taken_away_is_refused_with_what_to_type(word: str) -> None:
    error = mistaken(word)
    assert (error.code, str(error.key).startswith(word[1:].replace("/", "."))) == ("missing", True)
    assert TAKEN_AWAY[word] in str(error)


def test_a_key_that_is_taken_away_and_given_again_is_no_mistake() -> None:
    assert resolve(compose(["~agent.lr", "+agent.lr=1e-3"])).agent.config.lr == 1e-3


def test_a_component_of_labrl_in_a_file_of_ones_own_needs_every_key(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("_target_: labrl.agents.random.RandomAgent\n")
    assert resolve(compose(["agent=mine"], tmp_path)).agent.target.endswith("RandomAgent")
    (tmp_path / "agent" / "optimizer").mkdir()
    (tmp_path / "agent" / "optimizer" / "mine.yaml").write_text("_target_: labrl.networks.optimizers.Adam\n")
    with pytest.raises(InputError) as caught:
        resolve(compose(["agent/optimizer=mine"], tmp_path))
    assert ("missing", "agent.optimizer.eps") in {(one.code, one.key) for one in caught.value.mistakes}


@pytest.mark.parametrize("word", ["agent=xyz", "agent=foo", "agent=trpo", "env=xx"])
def test_nothing_is_suggested_where_nothing_is_near(word: str) -> None:
    assert "Did you mean" not in refused(word)


def test_null_among_choices_is_shown_the_way_that_can_hold_it() -> None:
    assert refused("agent.clip_range=choice(null, 0.2)").endswith("write 'agent.clip_range=null, 0.2'")


def test_class_that_is_no_vector_environment_is_shown_its_place() -> None:
    message = refused("env={_target_: builtins.dict}", "~env.id", "~env.name")
    assert "'env.make={_target_: builtins.dict}'" in message


def test_several_values_without_m_show_both_meanings() -> None:
    assert "labrl -m seed=1,2" in refused("seed=1,2")
    assert "seed=[1,2]" in refused("seed=1,2")


def test_interpolation_that_leads_nowhere_names_its_key() -> None:
    assert refused("agent.gamma=${agent.nothing}").startswith("agent.gamma: ")


def test_config_dir_that_is_no_folder_is_refused() -> None:
    with pytest.raises(InputError, match="--config-dir nowhere: there is no such folder"):
        compose([], "nowhere")


def test_a_mistake_that_other_keys_repeat_is_found_once() -> None:
    error = mistaken("agent=ppo", "env=cartpole", "env.max_frame=abc")
    assert [(mistake.code, mistake.key) for mistake in error.mistakes] == [("type", "env.max_frame")]


def test_recipes_of_ones_own_are_known_too_in_folders_or_not(tmp_path: Path) -> None:
    for name in ("experiment/best", "mine/deep/one"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("# @package _global_\nseed: 1\n")
    for word, meant in {
        "experiment=bets": "experiment=best? Known: best, atari/v4, ",
        "+mine=deep/on": "mine=deep/one? Known: deep/one.",
    }.items():
        with pytest.raises(InputError, match="no such option") as caught:
            compose([word], tmp_path)
        assert f"Did you mean {meant}" in str(caught.value)
