"""Mistyped input is refused with the full key, what is allowed, and the nearest right spelling."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from refusals import refused

from labrl.config.compose import compose, resolve
from labrl.errors import Code, InputError

UNKNOWN_KEYS = {
    "agent.lrr=1": "Did you mean agent.lr?",
    "lr=1": "agent.lr=1",
    "agent.discount=0.9": "agent.gamma=0.9",
    "total_timesteps=1000": "env.max_frame=1000",
    "max_episode_steps=10": "env.max_episode_steps=10",
    "max_frame=1": "env.max_frame=1",
    "agent.network.torso.hidden=[1]": "agent.network.torso.mlp.hidden=",
    "agent.network.torso.zzz=[1]": "agent.network.torso.mlp, agent.network.torso.cnn",
    "agnet=ppo": "Did you mean agent?",
    "agent/memory=uniform": "agent=c51, agent=crossq, agent=ddpg",
    "agent/noise=gaussian": "agent=ddpg, agent=td3",
    "agent/netwrk=mlp": "Did you mean agent/network",
    "hydra.run.dirr=x": "Did you mean hydra.run.dir?",
    "callbacks.mine=1": "+callbacks.mine=1",
    "env.atari_wrappers=1": "labrl --cfg job",
    "agent.self_imitation.updates=3": "agent/self_imitation=replay",
    "agent.self_imitation.zzz=3": "agent/self_imitation=replay",
    "+agent.horizn=4": "Did you mean agent.horizon?",
    "+mine=4": "labrl --cfg job",
    "+resum=latest": "Did you mean +resume=latest",
    "+enjoi=latest": "Did you mean +enjoy=latest?",
    "resum=latest": "Did you mean +resume=latest",
    "+env.num_envs=4": "write env.num_envs=4",
}
"""Typed overrides and the suggestion in the message."""


@pytest.mark.parametrize("override", UNKNOWN_KEYS)
def test_an_unknown_key_is_answered_with_the_nearest(override: str) -> None:
    with refused("unknown-key", override.lstrip("+").partition("=")[0], UNKNOWN_KEYS[override]):
        resolve(compose([override]))


UNKNOWN_OPTIONS = {
    "agent=pppo": "Did you mean agent=ppo",
    "env=ponk": "Did you mean env=pong",
    "env=ALE/Pong-v5": "Did you mean env=pong?",
    "env=MsPacmanNoFrameskip-v4": "Did you mean env=ms_pacman?",
    "env=cartpol": "Did you mean env=cartpole",
    "agent=a3c": "Did you mean agent=a2c",
    "agent=pp0": "Did you mean agent=ppo",
    "agent=td4": "Did you mean agent=td3",
    "env=pon": "Did you mean env=pong",
    "meta=fast": "Did you mean meta=fast_atari?",
    "meta=fast_atary": "Did you mean meta=fast_atari?",
    "preset=ppo_cartpol": "Did you mean preset=ppo_cartpole",
    "experiment=slm_lab/cartpol": "Did you mean experiment=slm_lab/cartpole",
    "experiment=slm_lab": "Did you mean experiment=slm_lab/",
    "experiment=best": "<folder>/experiment/best.yaml",
    "agent=3": "labrl --help",
    "env=unheard_of": "labrl-envs",
}


@pytest.mark.parametrize("override", UNKNOWN_OPTIONS)
def test_an_unknown_option_is_answered_with_the_nearest(override: str) -> None:
    """The nearest comes first, and a command that lists all of them after it."""
    group = override.partition("=")[0]
    lists = {"env": "labrl-envs", "meta": "Known: "}.get(group, "labrl --help")
    with refused("unknown-option", group, override, UNKNOWN_OPTIONS[override], lists):
        compose([override])


def test_a_key_below_what_another_word_took_away_names_that_override() -> None:
    with refused("unknown-key", "agent.lr.start", "agent.lr=null"):
        compose(["agent.lr=null", "agent.lr.start=3"])


def test_a_group_of_keys_that_another_does_not_have_is_shown_how_to_add_and_how_to_replace() -> None:
    override = "env.kwargs={gravity: -5}"
    with refused("unknown-key", "env.kwargs.gravity", "+env.kwargs.gravity=-5", f"~env.kwargs '+{override}'"):
        compose([override])


def test_a_key_of_other_agents_is_said_to_be_theirs() -> None:
    with refused("unknown-key", "agent.horizon", "agent=a2c, agent=ppo, agent=pqn") as caught:
        compose(["agent=dqn", "agent.horizon=5"])
    assert "Did you mean" not in str(caught.value)
    with refused("unknown-key", "agent.target_entropy", "agent=crossq, agent=sac, agent=tqc"):
        compose(["agent.target_entropy=1"])


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
        ("agent.clip_range=3", "range", "1"),
        ("agent.gae_lambda=-0.1", "range", "0"),
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
def test_wrong_values_name_what_is_allowed(override: str, code: Code, allowed: str) -> None:
    key, _, value = override.lstrip("+").partition("=")
    with refused(code, key, allowed, value):
        resolve(compose([override]))


def test_a_module_that_a_file_imports_is_not_suggested_as_a_class() -> None:
    with pytest.raises(InputError) as told:
        resolve(compose(["+callbacks.mine._target_=labrl.session.callbacks.log.Log"]))
    assert [one.key for one in told.value.mistakes] == ["callbacks.mine._target_"]
    assert "logging" not in str(told.value)


@pytest.mark.parametrize(
    ("override", "key", "named"),
    [
        ("agent.batch_size=100", "agent.batch_size", "agent.batch_size=128"),
        ("agent.batch_size=100000", "agent.batch_size", "agent.batch_size=256"),
        ("env.max_frame=100", "env.max_frame", "256"),
    ],
)
def test_contradictions_name_both_sides_and_the_way_out(override: str, key: str, named: str) -> None:
    with refused(None, key, named):
        resolve(compose(["agent.horizon=32", override]))


UNREADABLE = {
    "agent.lr=[1,": ("agent.lr", "[1,2]"),
    "agent.lr": ("agent.lr", "agent.lr=<value>"),
    "agent.lr={a:": ("agent.lr", "{a: 1, b: 2}"),
    "agent.lr=1e-3,": ("agent.lr", "write agent.lr=1e-3"),
    "=3": ("=3", "key=value"),
}


@pytest.mark.parametrize("override", UNREADABLE)
def test_bad_syntax_shows_how_to_write_it(override: str) -> None:
    key, shown = UNREADABLE[override]
    with refused("syntax", key, override, shown):
        compose([override])


@pytest.mark.parametrize("agent", ["a2c", "ppo"])
@pytest.mark.parametrize(("group", "shown"), [("env", "env=<option>"), ("preset", "preset=none")])
def test_what_takes_part_in_a_choice_cannot_be_taken_away(group: str, shown: str, agent: str) -> None:
    with refused("missing", group, f"~{group}", shown):
        compose([f"agent={agent}", f"~{group}"])


def test_options_that_build_on_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / "env" / f"{name}.yaml").write_text(f"defaults: [{other}]\n")
    with refused("syntax", "env"):
        compose(["env=one"], tmp_path)


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


@pytest.mark.parametrize("override", TAKEN_AWAY)
def test_a_key_that_is_taken_away_is_refused_with_what_to_type(override: str) -> None:
    error = mistaken(override)
    assert (error.code, str(error.key).startswith(override[1:].replace("/", "."))) == ("missing", True)
    assert TAKEN_AWAY[override] in str(error)


def test_a_key_that_is_taken_away_and_given_again_is_no_mistake() -> None:
    assert resolve(compose(["~agent.lr", "+agent.lr=1e-3"])).agent.config.lr == 1e-3


def test_a_component_of_labrl_in_a_file_of_ones_own_needs_every_key(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("_target_: labrl.agents.random.RandomAgent\n")
    assert resolve(compose(["agent=mine"], tmp_path)).agent.target.endswith("RandomAgent")
    (tmp_path / "agent" / "optimizer").mkdir()
    (tmp_path / "agent" / "optimizer" / "mine.yaml").write_text("_target_: labrl.learning.optimizers.Adam\n")
    with pytest.raises(InputError) as caught:
        resolve(compose(["agent/optimizer=mine"], tmp_path))
    assert ("missing", "agent.optimizer.eps") in {(one.code, one.key) for one in caught.value.mistakes}


@pytest.mark.parametrize("override", ["agent=xyz", "agent=foo", "agent=trpo", "env=xx"])
def test_nothing_is_suggested_where_nothing_is_near(override: str) -> None:
    assert "Did you mean" not in str(mistaken(override))


def test_null_among_choices_is_shown_the_way_that_can_hold_it() -> None:
    with refused("syntax", "agent.clip_range", "'agent.clip_range=null, 0.2'"):
        compose(["agent.clip_range=choice(null, 0.2)"])


def test_class_that_is_no_vector_environment_is_shown_its_place() -> None:
    with refused("target", "env._target_", "'env.make={_target_: builtins.dict}'"):
        resolve(compose(["env={_target_: builtins.dict}", "~env.id", "~env.name"]))


LISTS = {
    "agent.network.torso.mlp.hidden=8,4": ["agent.network.torso.mlp.hidden=[8,4]"],
    "search.objective=final_return,auc": ["search.objective=[final_return,auc]"],
    "+env.kwargs.sizes=1,2": ["+env.kwargs.sizes=[1,2]"],
    "agent.lr=1e-3,1e-4": [],
    "seed=0,1": [],
    "agent.gamma=0.9,0.99": [],
    "agent.target_kl=0.1,0.2": [],
    "agent.lrr=0.1,0.2": [],
    "hydra.run.dir=a,b": [],
    "seed=range(0,2)": [],
    "agent=ppo,dqn": [],
}
"""Several values of a key, and the list among the answers."""


@pytest.mark.parametrize("override", LISTS)
def test_several_values_without_m_are_shown_as_a_list_only_where_that_is_accepted(override: str) -> None:
    with refused("usage", override.lstrip("+").partition("=")[0], f"labrl -m '{override}'") as caught:
        compose([override])
    lists = re.findall(r"\S+=\[.*?\]", str(caught.value))
    assert lists == LISTS[override]
    for typed in lists:
        resolve(compose([typed]))


@pytest.mark.parametrize("override", ["agent.lr=[1e-3,1e-4]", "agent.network.torso.mlp.hidden={a: 1}"])
def test_a_value_of_a_kind_that_the_key_refuses_is_not_said_to_replace_it(override: str) -> None:
    with refused("type", override.partition("=")[0]) as caught:
        compose([override])
    assert "~" not in str(caught.value)


def test_a_value_of_another_kind_that_the_key_accepts_is_shown_how_to_replace_it(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    own = "defaults: [cartpole, _self_]\nkwargs: {sizes: {a: 1}}\n"
    (tmp_path / "env" / "mine.yaml").write_text(own)
    with refused("type", "env.kwargs.sizes") as caught:
        compose(["env=mine", "env.kwargs.sizes=[1,2]"], tmp_path)
    words = shlex.split(str(caught.value).rpartition("write ")[2])
    assert words
    assert resolve(compose(["env=mine", *words], tmp_path)).env.config.kwargs["sizes"] == [1, 2]


@pytest.mark.parametrize(
    "group", ["env", "agent", "agent/network", "agent/memory", "callbacks", "+callbacks"]
)
def test_an_option_that_labrl_lacks_is_said_where_to_put_and_found_there(group: str, tmp_path: Path) -> None:
    typed, others = f"{group}=gridworld", [] if group == "agent" else ["agent=dqn"]
    with pytest.raises(InputError) as caught:
        resolve(compose([*others, typed]))
    told = str(caught.value).rstrip(".").split()
    bare = group.lstrip("+")
    assert {f"<folder>/{bare}/gridworld.yaml,", "--config-dir=<folder>"} <= set(told)
    assert caught.value.key == bare
    (tmp_path / bare).mkdir(parents=True)
    base = {"env": "cartpole", "agent": "dqn", "agent/network": "mlp", "agent/memory": "uniform"}.get(bare)
    own = f"defaults: [{base}, _self_]\n" if base else "{}\n"
    (tmp_path / bare / "gridworld.yaml").write_text(own)
    resolve(compose([*others, told[-1] if group == "callbacks" else typed], tmp_path))


@pytest.mark.parametrize("override", ["agent.epochs=0", "agent.gamma=1.5", "agent.lr=-1", "seed=-1"])
def test_ranges_are_told_in_one_form_and_without_empty_advice(override: str) -> None:
    key = override.partition("=")[0]
    with refused("range", key) as caught:
        resolve(compose([override]))
    for text in ("or equal to", "<value>"):
        assert text not in str(caught.value)
    bound = re.search(r"at (?:least|most) (\d+)", str(caught.value))
    assert bound is not None
    resolve(compose([f"{key}={bound[1]}"]))


def test_interpolation_that_leads_nowhere_names_its_key() -> None:
    with refused("missing", "agent.gamma", "agent.nothing", "agent.gamma=<value>"):
        resolve(compose(["agent.gamma=${agent.nothing}"]))


def test_config_dir_that_is_no_folder_is_refused() -> None:
    with refused("not-found", "--config-dir", "nowhere"):
        compose([], "nowhere")


def test_a_mistake_that_other_keys_repeat_is_found_once() -> None:
    error = mistaken("agent=ppo", "env=cartpole", "env.max_frame=abc")
    assert [(mistake.code, mistake.key) for mistake in error.mistakes] == [("type", "env.max_frame")]


def test_recipes_of_ones_own_are_known_too_in_folders_or_not(tmp_path: Path) -> None:
    for name in ("experiment/best", "mine/deep/one"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("# @package _global_\nseed: 1\n")
    for override, meant in {"experiment=bets": "experiment=best", "+mine=deep/on": "mine=deep/one"}.items():
        with refused("unknown-option", override.lstrip("+").partition("=")[0], f"Did you mean {meant}?"):
            compose([override], tmp_path)
