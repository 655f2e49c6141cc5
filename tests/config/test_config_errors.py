"""Tests of messages for mistyped input: the full key, the allowed values and the nearest spelling."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
from refusals import refused

from labrl.cli import main
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
    "agent/memory=uniform": "labrl --help",
    "agent/netwrk=mlp": "Did you mean agent/network",
    "callbacks.mine=1": "+callbacks.mine=1",
    "env.atari_wrappers=1": "labrl --cfg job",
    "agent.self_imitation.updates=3": "agent/self_imitation=replay",
    "+agent.horizn=4": "Did you mean agent.horizon?",
    "+mine=4": "labrl --cfg job",
    "+resum=latest": "Did you mean +resume=latest",
    "+enjoi=latest": "Did you mean +enjoy=latest?",
    "resum=latest": "Did you mean +resume=latest",
    "+env.num_envs=4": "env.num_envs",
}
"""Wrong overrides, each with the suggestion in its error message."""


@pytest.mark.parametrize("override", UNKNOWN_KEYS)
def test_error_for_unknown_key_suggests_the_nearest_key(override: str) -> None:
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
    "preset=cartpol": "Did you mean preset=cartpole",
    "experiment=slm_lab/cartpol": "Did you mean experiment=slm_lab/cartpole",
    "experiment=slm_lab": "Did you mean experiment=slm_lab/",
    "experiment=best": "<folder>/experiment/best.yaml",
    "agent=3": "labrl --help",
    "wandb=off": "Did you mean wandb=disabled?",
    "wandb=true": "Did you mean wandb=online?",
    "agent/offline=null": "Did you mean agent/offline=none?",
    "env=null": "labrl-envs",
    "env=unheard_of": "labrl-envs",
}


@pytest.mark.parametrize("override", UNKNOWN_OPTIONS)
def test_error_for_unknown_option_suggests_the_nearest_option(override: str) -> None:
    """Check that the message also names a command that lists all options."""
    group = override.partition("=")[0]
    short = dict.fromkeys(("meta", "wandb", "agent/offline"), "Known: ")
    lists = {"env": "labrl-envs", **short}.get(group, "labrl --help")
    with refused("unknown-option", group, override, UNKNOWN_OPTIONS[override], lists):
        compose([override])


@pytest.mark.parametrize(
    ("overrides", "key", "meant", "other"),
    [
        (["agent=dqn", "agent.exploraton.epsilon=0.1"], "agent.exploration.epsilon=0.1", "", "memory.eps"),
        (
            ["agent=dqn", "agent.memory.epsilon=0.1"],
            "agent.memory.eps=0.1",
            "agent.exploration.epsilon",
            "Known keys",
        ),
        (["agent=dqn", "trainer.step_per_epoch=1000"], "meta.eval_frequency=1000", "", "agent.horizon"),
        (["agent=td3", "env=pendulum", "agent.noise.sigma=0.2"], "agent.noise.std=0.2", "", "Known keys"),
    ],
)
def test_key_of_another_library_is_one_that_the_agent_has(
    overrides: list[str], key: str, meant: str, other: str
) -> None:
    """Regression test: keys that exist with other options only were suggested, too."""
    message = str(mistaken(*overrides))
    assert key in message
    assert meant in message
    assert other not in message


@pytest.mark.parametrize(("env_id", "meant"), [("Nope-v0", None), ("CartPole-v9", "CartPole-v1")])
def test_id_of_an_environment_is_suggested_only_if_it_is_similar(
    env_id: str,
    meant: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression test: Hopper was suggested for Nope, and Gopher where the ALE's games were registered."""
    pytest.importorskip("ale_py")  # registers its games where it is imported
    monkeypatch.chdir(tmp_path)
    assert main(["env=gymnasium", f"env.id={env_id}"]) == 2
    suggested = re.findall(r"Did you mean (?:env\.id=)?(\S+)\?", capsys.readouterr().err)
    assert suggested == ([meant] if meant else [])


def test_key_below_a_null_is_refused() -> None:
    with refused(None, "agent.lr.start"):
        compose(["agent.lr=null", "agent.lr.start=3"])


def test_error_for_unknown_key_of_a_dict_names_the_key() -> None:
    override = "env.kwargs={gravity: -5}"
    with refused("unknown-key", "env.kwargs.gravity"):
        compose([override])


def test_error_for_unknown_key_in_one_of_several_dicts_names_the_key(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Regression test: the command ended in a traceback."""
    assert main(["-m", "env.kwargs={gravity: -5},{length: 1}"]) == 2
    assert capsys.readouterr().err.startswith("labrl: env.kwargs.gravity")


def test_error_for_key_of_other_agents_names_these_agents() -> None:
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
        ("agent.normalize_advantage=1", "type", "boolean"),
        ("meta.device=gpu", "unknown-option", "meta.device=cuda"),
        ("meta.kernels=off", "unknown-option", "meta.kernels=torch"),
        ("meta.kernels=false", "unknown-option", "meta.kernels=torch"),
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
def test_error_for_wrong_value_names_allowed_values(override: str, code: Code, allowed: str) -> None:
    key, _, value = override.lstrip("+").partition("=")
    with refused(code, key, allowed, value):
        resolve(compose([override]))


def test_imported_module_is_not_suggested_as_a_class() -> None:
    with pytest.raises(InputError) as caught:
        resolve(compose(["+callbacks.mine._target_=labrl.session.callbacks.log.Log"]))
    assert [one.key for one in caught.value.mistakes] == ["callbacks.mine._target_"]
    assert "logging" not in str(caught.value)


UNREADABLE = {
    "agent.lr=[1,": ("agent.lr", "[1,2]"),
    "agent.lr": ("agent.lr", "key=value"),
    "agent.lr={a:": ("agent.lr", "{a: 1, b: 2}"),
    "agent.lr=1e-3,": ("agent.lr", "key=value"),
    "=3": ("=3", "key=value"),
}


@pytest.mark.parametrize("override", UNREADABLE)
def test_error_for_bad_syntax_shows_the_right_syntax(override: str) -> None:
    key, shown = UNREADABLE[override]
    with refused("syntax", key, override, shown):
        compose([override])


@pytest.mark.parametrize("agent", ["a2c", "ppo"])
@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("env", "~env"),
        ("preset", "preset=none"),
        ("transforms/reward", "transforms/reward=none"),
        ("transforms/observation", "transforms/observation=none"),
    ],
)
def test_groups_that_presets_depend_on_or_set_cannot_be_removed(group: str, shown: str, agent: str) -> None:
    with refused("missing", group, f"~{group}", shown):
        compose([f"agent={agent}", f"~{group}"])


@pytest.mark.parametrize("override", ["agent.lrr=1", "env=ponk", "agent.lr=[", "agent.lr=-1"])
def test_wrong_override_raises_one_error_without_those_of_hydra(override: str) -> None:
    """Regression test: a notebook showed 52 lines, most of them from Hydra and OmegaConf."""
    with pytest.raises(InputError) as caught:
        resolve(compose([override]))
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_options_that_extend_each_other_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "env").mkdir()
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / "env" / f"{name}.yaml").write_text(f"defaults: [{other}]\n")
    with refused("syntax", "env"):
        compose(["env=one"], tmp_path)


REMOVED = {
    "~agent.lr": "agent.lr=",
    "~agent.target_kl": "agent.target_kl=",
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


@pytest.mark.parametrize("override", REMOVED)
def test_error_for_removed_key_shows_how_to_set_it(override: str) -> None:
    error = mistaken(override)
    assert (error.code, str(error.key).startswith(override[1:].replace("/", "."))) == ("missing", True)
    assert REMOVED[override] in str(error)


def test_key_may_be_removed_and_added_again() -> None:
    assert resolve(compose(["~agent.lr", "+agent.lr=1e-3"])).agent.config.lr == 1e-3


def test_component_in_a_users_file_needs_every_key(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "mine.yaml").write_text("_target_: labrl.agents.random.RandomAgent\n")
    assert resolve(compose(["agent=mine"], tmp_path)).agent.target.endswith("RandomAgent")
    (tmp_path / "agent" / "optimizer").mkdir()
    (tmp_path / "agent" / "optimizer" / "mine.yaml").write_text("_target_: labrl.learning.optimizers.Adam\n")
    with pytest.raises(InputError) as caught:
        resolve(compose(["agent/optimizer=mine"], tmp_path))
    assert ("missing", "agent.optimizer.eps") in {(one.code, one.key) for one in caught.value.mistakes}


@pytest.mark.parametrize("override", ["agent=xyz", "agent=foo", "agent=trpo", "env=xx"])
def test_nothing_is_suggested_when_no_option_is_similar(override: str) -> None:
    assert "Did you mean" not in str(mistaken(override))


def test_error_for_class_as_env_target_suggests_env_make() -> None:
    with refused("target", "env._target_", "'env.make={_target_: builtins.dict}'"):
        resolve(compose(["env={_target_: builtins.dict}", "~env.id", "~env.name"]))


SEVERAL = (
    *("agent.network.torso.mlp.hidden=8,4", "search.objective=final_return,auc", "+env.kwargs.sizes=1,2"),
    *("agent.lr=1e-3,1e-4", "seed=0,1", "agent.target_kl=0.1,0.2", "agent.lrr=0.1,0.2", "hydra.run.dir=a,b"),
    *("seed=range(0,2)", "agent=ppo,dqn", "agent.lr=interval(1e-5,1e-3)"),
)


@pytest.mark.parametrize("override", SEVERAL)
def test_error_for_several_values_suggests_an_experiment(override: str) -> None:
    with refused("usage", override.lstrip("+").partition("=")[0], f"labrl -m '{override}'"):
        compose([override])


@pytest.mark.parametrize("override", ["agent.lr=[1e-3,1e-4]", "agent.network.torso.mlp.hidden={a: 1}"])
def test_error_for_wrong_type_suggests_no_replacement_that_is_invalid(override: str) -> None:
    with refused("type", override.partition("=")[0]) as caught:
        compose([override])
    assert "~" not in str(caught.value)


@pytest.mark.parametrize("group", ["env", "agent", "agent/network", "agent/memory"])
def test_error_for_unknown_option_says_where_to_put_its_file(group: str, tmp_path: Path) -> None:
    typed, others = f"{group}=gridworld", [] if group == "agent" else ["agent=dqn"]
    with pytest.raises(InputError) as caught:
        resolve(compose([*others, typed]))
    message = str(caught.value).rstrip(".").split()
    bare = group.lstrip("+")
    assert {f"<folder>/{bare}/gridworld.yaml,", "--config-dir=<folder>"} <= set(message)
    assert caught.value.key == bare
    (tmp_path / bare).mkdir(parents=True)
    base = {"env": "cartpole", "agent": "dqn", "agent/network": "mlp", "agent/memory": "uniform"}.get(bare)
    own = f"defaults: [{base}, _self_]\n" if base else "{}\n"
    (tmp_path / bare / "gridworld.yaml").write_text(own)
    resolve(compose([*others, typed], tmp_path))


def test_error_for_interpolation_of_unknown_key_names_its_key() -> None:
    with refused("missing", "agent.gamma", "agent.nothing", "agent.gamma=<value>"):
        resolve(compose(["agent.gamma=${agent.nothing}"]))


def test_config_dir_that_does_not_exist_is_rejected() -> None:
    with refused("not-found", "--config-dir", "nowhere"):
        compose([], "nowhere")


def test_mistake_that_other_keys_interpolate_is_reported_once() -> None:
    error = mistaken("agent=ppo", "env=cartpole", "env.max_frame=abc")
    assert [(mistake.code, mistake.key) for mistake in error.mistakes] == [("type", "env.max_frame")]


def test_experiment_files_of_a_user_are_suggested(tmp_path: Path) -> None:
    for name in ("experiment/best", "mine/deep/one"):
        path = tmp_path / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text("# @package _global_\nseed: 1\n")
    for override, meant in {"experiment=bets": "experiment=best", "+mine=deep/on": "mine=deep/one"}.items():
        with refused("unknown-option", override.lstrip("+").partition("=")[0], f"Did you mean {meant}?"):
            compose([override], tmp_path)
