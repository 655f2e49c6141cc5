"""Tests of composing: every option gives a valid configuration, and overrides win over presets."""

from __future__ import annotations

import csv
import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from exact_cases import QUIET
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

import labrl
from labrl.config import config_folder
from labrl.config.compose import compose, hydra_initialized, origins, resolve, to_plain
from labrl.config.extensions import FileSource
from labrl.config.presets import choices_of, origin_of
from labrl.config.schema import TrialConfig
from labrl.envs.games import games
from labrl.errors import InputError
from labrl.trial.contradictions import check_keys
from labrl.trial.create import check

CONFIGS = config_folder()
# The tasks of MuJoCo share their presets, so one stands for all; test_mujoco.py covers each.
_MUJOCO = {file.stem for file in (CONFIGS / "env").glob("*.yaml") if "extra mujoco" in file.read_text()}
BASES = {"atari", "gymnasium", "mujoco"}
ENVS = sorted({f.stem for f in (CONFIGS / "env").glob("*.yaml")} - BASES - _MUJOCO | {"hopper"})
CONTINUOUS = ("pendulum", "bipedal_walker", "lunar_lander_continuous", "mountain_car_continuous", "hopper")
AGENTS = sorted(f.stem for f in (CONFIGS / "agent").glob("*.yaml"))
SECTIONS = {
    file.stem: tuple(yaml.safe_load(file.read_text()))
    for file in (CONFIGS / "preset").glob("*.yaml")
    if file.stem != "none"
}
FAMILIES = {"hopper": "mujoco", "pong": "atari"}


def composed(*overrides: str) -> TrialConfig:
    return resolve(compose(list(overrides)))


def pairs() -> Iterator[Any]:
    """Yield all pairs of an agent and an environment.

    Only `make exact` runs those that are marked `matrix`: pairs without a preset, except those with CartPole,
    Pong, BipedalWalker or agent=random.
    """
    for agent in AGENTS:
        for env in [*ENVS, "pong"]:
            preset = any(agent in SECTIONS.get(one, ()) for one in (env, FAMILIES.get(env, "")))
            first = env in ("cartpole", "pong", "bipedal_walker") or agent == "random" or preset
            yield pytest.param(agent, env, marks=() if first else pytest.mark.matrix)


@pytest.mark.extended
@pytest.mark.parametrize(("agent", "env"), list(pairs()))
def test_every_agent_composes_with_every_environment_and_learns_early_with_meta_dev(
    agent: str, env: str
) -> None:
    overrides = [f"agent={agent}", f"env={env}"]
    if agent in ("c51", "rainbow") and env in CONTINUOUS:
        # These agents do not support continuous actions, so no preset gives the range of the returns.
        overrides += ["agent.value.v_min=-1", "agent.value.v_max=1"]
    assert composed(*overrides).env.config.name == env
    config = composed("meta=dev", *overrides)
    # Refused if training would end before the first update.
    short = dataclasses.replace(config.env.config, max_frame=300)
    check_keys(dataclasses.replace(config, env=dataclasses.replace(config.env, config=short)))
    assert config.env.config.max_frame <= 64 + 64 * config.env.config.num_envs
    assert config.meta.max_wall is not None
    assert config.meta.max_wall <= 30


def test_every_game_composes_without_its_own_file() -> None:
    source = FileSource("test", f"{FileSource.scheme()}://{CONFIGS}")
    assert len(games()) > 90
    for game in games():
        assert source.load_config(f"env/{game}").config == {"defaults": ["atari", "_self_"], "game": game}
    # The games differ in this one override only, so a few are enough for the slow part.
    for game in games()[::30]:
        cfg = compose([f"env={game}"])
        assert (cfg.env.game, cfg.env.name, cfg.env.sticky_actions) == (game, game, 0.25)


def test_preset_comes_after_the_file_of_the_agent_and_before_overrides() -> None:
    own = yaml.safe_load((CONFIGS / "agent" / "ppo.yaml").read_text())
    without, preset = (compose(["env=pong", f"preset={one}"]).agent.epochs for one in ("none", "pong"))
    assert without == own["epochs"] != preset
    cfg = compose(["env=cartpole", "agent.gamma=0.5", "env.num_envs=2", "agent.lr=1e-4"])
    assert (cfg.agent.gamma, cfg.env.num_envs, cfg.agent.lr) == (0.5, 2, 1e-4)


def test_preset_of_agent_and_part_applies_after_that_of_the_part() -> None:
    for agent, epsilon, every in (("dqn", 0.05, 500), ("double_dqn", 0.01, 50)):
        cfg = compose([f"agent={agent}", "env=lunar_lander"])
        assert (cfg.agent.exploration.epsilon.end, cfg.agent.target.every) == (epsilon, every)
    other = ["agent/exploration=boltzmann", "agent/target=polyak", "agent/memory=prioritized"]
    assert composed("agent=double_dqn", "env=lunar_lander", *other).agent.config.memory.config.beta == 0


@pytest.mark.parametrize(
    ("overrides", "optimizer"),
    [
        (["agent=a2c"], "RMSProp"),
        (["agent=a2c", "env=lunar_lander"], "Adam"),
        (["agent=a2c", "env=gymnasium", "env.id=LunarLander-v3", "preset=a2c_lunar_lander"], "Adam"),
        (["agent=a2c", "env=lunar_lander", "agent/optimizer=rmsprop"], "RMSProp"),
    ],
)
def test_preset_can_choose_another_optimizer(overrides: list[str], optimizer: str) -> None:
    assert composed(*overrides).agent.config.optimizer.target == f"labrl.learning.optimizers.{optimizer}"
    cfg = compose(overrides, with_hydra=True)
    recorded = choices_of(cfg.hydra)["agent/optimizer"]
    assert compose([*overrides, f"agent/optimizer={recorded}"]).agent == cfg.agent


@pytest.mark.parametrize("optimizer", ["adam", "radam", "rmsprop"])
def test_chosen_optimizer_replaces_all_keys_of_a_presets_optimizer(optimizer: str) -> None:
    overrides = ["agent=a2c", f"agent/optimizer={optimizer}"]
    chosen = compose([*overrides, "preset=none"]).agent.optimizer
    assert compose([*overrides, "env=lunar_lander"]).agent.optimizer == chosen


def applied(*overrides: str, config_dir: Path | None = None) -> list[str]:
    """Return the presets that Hydra composes: `<file>: <section>`, or the name of a file."""
    compose([*overrides], config_dir)
    found = []
    with hydra_initialized(config_dir):
        loader = GlobalHydra.instance().config_loader()
        for one in loader.compute_defaults_list("config", [*overrides], RunMode.RUN).defaults:
            path = one.config_path or ""
            source = next((one for one in loader.get_sources() if one.is_config(path)), None)
            if path.startswith("preset/") and source and set(source.load_config(path).config) - {"defaults"}:
                file, _, title = origin_of(Path(source.path), path).partition(", section ")
                found.append(f"{Path(file).stem}: {title}" if title else Path(file).stem)
    return found


@pytest.mark.parametrize(
    ("overrides", "presets"),
    [
        ("", ["cartpole: ppo"]),
        ("preset=none", []),
        ("preset=ppo_cartpole env=pong", ["cartpole: ppo"]),
        ("preset=breakout env=cartpole", ["atari: ppo"]),
        ("preset=lunar_lander agent=sil_ppo env=pong", ["lunar_lander: ppo", "sil_ppo"]),
        (
            "agent=dqn env=cartpole agent/exploration=boltzmann",
            ["cartpole: agent/target=replace", "cartpole: dqn"],
        ),
        ("agent=a2c env=lunar_lander agent/optimizer=rmsprop", ["lunar_lander: a2c"]),
        (
            "agent=crossq env=lunar_lander_continuous",
            ["lunar_lander: crossq"],  # which the section of the continuous version extends
        ),
        ("search=sac env=pendulum", ["pendulum: sac"]),
        (
            "agent=rainbow env=pong",  # presets of base agents come before those of the agent
            [
                *("atari: agent/value=categorical", "atari: agent/memory=prioritized"),
                *("atari: agent/target=replace", "atari: dqn", "rainbow"),
                *("atari: rainbow agent/target=replace", "atari: rainbow"),
            ],
        ),
        ("agent=tqc env=swimmer", ["mujoco: sac", "swimmer: sac", "tqc", "mujoco: tqc"]),
    ],
)
def test_applied_presets_are_listed_in_order_of_precedence(overrides: str, presets: list[str]) -> None:
    assert applied(*overrides.split()) == presets


def test_presets_of_a_user_apply_for_families_parts_and_agents_after_those_of_labrl(tmp_path: Path) -> None:
    (tmp_path / "preset").mkdir()
    for name, content in {
        "random_atari": "env: {num_envs: 3}",
        "random_pong": "env: {frame_stack: 2}",
        "polyak_cartpole": "agent: {target: {tau: 0.25}}",
        "double_dqn_cartpole": "defaults: [dqn_cartpole, _self_]\nagent: {n_step: 2}",
    }.items():
        (tmp_path / "preset" / f"{name}.yaml").write_text(f"# @package _global_\n{content}\n")
    env = compose(["agent=random", "env=pong"], tmp_path).env
    assert (env.num_envs, env.frame_stack) == (3, 2)
    dqn = ["agent=dqn", "env=cartpole"]
    assert compose([*dqn, "agent/target=polyak"], tmp_path).agent.target.tau == 0.25
    assert "tau" not in compose(dqn, tmp_path).agent.target
    agent = compose(["agent=double_dqn", "env=cartpole"], tmp_path).agent
    assert (agent.n_step, agent.batch_size) == (2, 128)
    file = tmp_path / "preset" / "random_atari.yaml"
    found = origins("env.num_envs", ["agent=random", "env=pong"], tmp_path)["env.num_envs"]
    assert found[-1] == (str(file), 3)


@pytest.mark.parametrize(("num_envs", "horizon"), [(1, 2048), (3, 640), (100, 32)])
def test_rollouts_on_pendulum_are_multiples_of_the_minibatch(num_envs: int, horizon: int) -> None:
    config = composed("env=pendulum", f"env.num_envs={num_envs}")
    check(config)
    assert config.agent.config.horizon == horizon


@pytest.mark.extended
@pytest.mark.parametrize(
    "overrides",
    [
        ["agent=rainbow", "env=seaquest", "env.max_frame=160"],
        ["agent=reinforce", "env=pendulum", "env.max_frame=600"],  # learns when episodes end
    ],
    ids=str,
)
def test_dev_updates_and_evaluates(overrides: list[str], tmp_path: Path) -> None:
    result = labrl.train(["meta=dev", *QUIET, *overrides, f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.exit_code == 0
    for name in ("train", "eval"):
        with (result.folder / "session_0" / f"{name}.csv").open() as file:
            last = list(csv.DictReader(file))[-1]
        assert int(last["opt_step"]) > 0


def test_dev_keeps_values_that_were_typed() -> None:
    config = composed("meta=dev", "agent=dqn", "env=pong", "agent.learning_starts=5000", "env.num_envs=3")
    assert (config.agent.config.learning_starts, config.env.config.num_envs) == (5000, 3)
    assert config.env.config.max_frame > 5000
    config = composed("meta=dev", "agent=a2c", "agent.horizon=null", "agent.episodes=3")
    assert config.env.config.max_frame == 64 * config.env.config.num_envs


def first_lines() -> Iterator[str]:
    """Yield the command in the first line of each file, except those with placeholders and search spaces."""
    for file in CONFIGS.rglob("*.yaml"):
        line = next(one for one in file.read_text().splitlines() if not one.startswith("# @package"))
        assert line.startswith("# labrl"), file
        if line[7] == " " and not set("<(") & set(line) and "hydra" not in file.parts:
            line = re.sub(r" \[(.*?)\]", r" \1", line)  # [optional words]
            yield line.removeprefix("# labrl ").partition("        ")[0]


@pytest.mark.parametrize("command", sorted(set(first_lines())))
def test_command_of_each_file_composes_a_valid_configuration(command: str) -> None:
    """No dataclass has defaults (see test_config_fields.py), so a file that lacks a key is refused."""
    composed(*(one for one in shlex.split(command) if one != "-m"))


@pytest.mark.parametrize("overrides", [[], ["env=pong", "meta=fast_atari"], ["env=bipedal_walker", "seed=3"]])
def test_saved_configuration_gives_the_same_trial(overrides: list[str]) -> None:
    cfg = compose(overrides)
    plain = to_plain(cfg)
    saved = yaml.safe_load(yaml.safe_dump(plain))
    assert resolve(cfg) == resolve(plain) == resolve(saved) == resolve(OmegaConf.create(plain))


INHERITS = {  # file of the agent, and its module
    "file": ("defaults: [dqn, _self_]", ""),
    "file of another": ("defaults: [/agent/other@_here_, _self_]", ""),
    "file with a class of labrl": ("_target_: labrl.agents.dqn.DQN", ""),
    "class": ("_target_: own_inheriting.Own", "from labrl.agents.dqn import DQN\n\nclass Base(DQN): pass\n"
     "class Own(Base): pass\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", INHERITS)
def test_agent_of_a_user_inherits_the_presets_of_its_parents(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("agent", "preset"):
        (tmp_path / group).mkdir()
    content, module = INHERITS[kind]
    (tmp_path / "agent" / "other.yaml").write_text("defaults: [dqn, _self_]\ngamma: 0.5\n")
    (tmp_path / "agent" / "own.yaml").write_text(content)
    (tmp_path / "own_inheriting.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = "own: {agent: {n_step: 2}}\ndqn: {agent: {batch_size: 7}}\nagent/target=polyak: {agent: {lr: 1}}\n"
    (tmp_path / "preset" / "cartpole.yaml").write_text(own)
    presets = applied("agent=own", "env=cartpole", config_dir=tmp_path)
    assert presets.count("cartpole: dqn") == 2  # labrl's and the user's
    assert presets[-1] == "cartpole: own"
    parts = {"cartpole: agent/exploration=epsilon_greedy", "cartpole: agent/target=replace"}
    assert parts & set(presets) == (set() if "class" in kind else parts)  # those files select no parts
    agent = compose(["agent=own", "env=cartpole"], tmp_path).agent
    # The file of an agent has priority over the presets that it inherits.
    assert (agent.n_step, agent.batch_size, agent.gamma) == (2, 7, 0.5 if "another" in kind else 0.99)
    assert applied("agent=own", "preset=none", config_dir=tmp_path) == []


def test_section_for_an_unknown_agent_is_refused(tmp_path: Path) -> None:
    (tmp_path / "preset").mkdir()
    for text in ("pp0: {agent: {gamma: 0.5}}\n", "ppo: 3\n", "ppo: {agent: {gamma: 0.5}\n"):
        (tmp_path / "preset" / "cartpole.yaml").write_text(text)
        with pytest.raises(InputError) as caught:
            compose([], tmp_path)
        assert (caught.value.code, caught.value.key) == ("syntax", f"{tmp_path}/preset/cartpole.yaml")


def test_origins_of_a_key_are_listed_in_order_of_precedence() -> None:
    def found(key: str, *overrides: str) -> list[tuple[str, Any]]:
        return [(Path(origin).name, value) for origin, value in origins(key, [*overrides])[key]]

    assert found("agent.gamma") == [("ppo.yaml", 0.99), ("cartpole.yaml, section ppo", 0.98)]
    assert found("agent.gamma", "preset=none", "agent.gamma=0.5") == [
        ("ppo.yaml", 0.99),
        ("override agent.gamma=0.5", "0.5"),
    ]
    assert found("env.game", "env=pong", "agent=dqn") == [("atari.yaml", "???"), ("env=pong", "pong")]
    every = origins("", ["experiment=atari/v4", "env=pong"])
    assert every.keys() >= {"env.sticky_actions", "meta.max_session", "transforms.reward._target_", "seed"}
    assert [key for key, one in every.items() if not one] == []
    assert Path(every["env.sticky_actions"][-1][0]).name == "v4.yaml"
    with pytest.raises(InputError) as caught:
        origins("agent.gama", [])
    assert (caught.value.code, caught.value.key) == ("unknown-key", "agent.gama")


@pytest.mark.parametrize(
    ("overrides", "reward"),
    [
        (["env=pendulum"], {"NormalizeReward": {"gamma", "clip", "epsilon", "window"}}),
        (["env=pendulum", "transforms/reward=clip"], {"ScaleReward": {"scale", "shift", "low", "high"}}),
        (
            ["env=pendulum", "transforms.reward={_target_: labrl.agents.transforms.SignReward}"],
            {"SignReward": set()},
        ),
        (["env=pong", "transforms/reward=none"], {}),
        (["env=pong", "transforms.reward=null"], {}),
    ],
)
def test_chosen_transform_replaces_that_of_preset_or_environment(
    overrides: list[str], reward: dict[str, set[str]]
) -> None:
    found = compose(overrides).transforms.reward
    keys = {} if found is None else {found._target_.rpartition(".")[2]: {*found} - {"_target_"}}
    assert keys == reward
    resolve(compose(overrides))
