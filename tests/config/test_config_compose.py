"""Tests of composing: every option gives a valid configuration, and overrides win over presets."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from exact_cases import QUIET
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.types import RunMode
from omegaconf import OmegaConf

import labrl
from labrl.component import Component
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
NETWORKS = sorted(f.stem for f in (CONFIGS / "agent" / "network").glob("*.yaml"))
METAS = sorted(f.stem for f in (CONFIGS / "meta").glob("*.yaml"))
OPTIMIZERS = sorted({f.stem for f in (CONFIGS / "agent" / "optimizer").glob("*.yaml")} - {"torch"})
PARTS = ("value", "target", "memory", "exploration", "noise")
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
    Pong or agent=random.
    """
    for agent in AGENTS:
        for env in [*ENVS, "pong"]:
            preset = any(agent in SECTIONS.get(one, ()) for one in (env, FAMILIES.get(env, "")))
            first = env in ("cartpole", "pong") or agent == "random" or preset
            yield pytest.param(agent, env, marks=() if first else pytest.mark.matrix)


@pytest.mark.extended
@pytest.mark.parametrize(("agent", "env"), list(pairs()))
def test_every_agent_composes_with_every_environment(agent: str, env: str) -> None:
    overrides = [f"agent={agent}", f"env={env}"]
    if agent in ("c51", "rainbow") and env in CONTINUOUS:
        # These agents do not support continuous actions, so no preset gives the range of the returns.
        overrides += ["agent.value.v_min=-1", "agent.value.v_max=1"]
    assert composed(*overrides).env.config.name == env


@pytest.mark.parametrize("meta", METAS)
@pytest.mark.parametrize("overrides", [("env=bipedal_walker",), ("env=pong",), ("agent=random",)], ids=str)
def test_every_meta_option_composes(meta: str, overrides: tuple[str, ...]) -> None:
    composed(f"meta={meta}", *overrides)


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_option_composes(network: str) -> None:
    composed(f"agent/network={network}")


def test_every_game_composes_without_its_own_file() -> None:
    source = FileSource("test", f"{FileSource.scheme()}://{CONFIGS}")
    assert len(games()) > 90
    assert set(games()) <= set(source.list("env", ObjectType.CONFIG))
    for game in games():
        assert source.is_config(f"env/{game}")
        content = source.load_config(f"env/{game}").config
        assert content == {"defaults": ["atari", "_self_"], "game": game}
    # The games differ in this one override only, so a few are enough for the slow part.
    for game in games()[::12]:
        cfg = compose([f"env={game}"])
        assert (cfg.env.game, cfg.env.name, cfg.env.sticky_actions) == (game, game, 0.25)
        assert cfg.transforms.reward._target_.endswith("SignReward")


def test_atari_base_is_the_v5_protocol() -> None:
    env = composed("env=pong", "preset=none").env.config
    assert (env.num_envs, env.frame_skip, env.frame_stack, env.image_size) == (16, 4, 4, 84)
    assert (env.grayscale, env.sticky_actions, env.life_loss_signal, env.max_frame) == (
        True,
        0.25,
        True,
        10**7,
    )


def test_fast_atari_equals_the_spec_of_slm_lab() -> None:
    meta = composed("meta=fast_atari", "env=pong").meta
    assert meta.distributed is False
    assert (meta.rigorous_eval, meta.eval_frequency, meta.log_frequency) == (0, 10000, 5000)
    assert (meta.max_session, meta.max_trial) == (4, 1)


def test_overrides_take_precedence_over_presets() -> None:
    cfg = compose(["env=cartpole", "agent.gamma=0.5", "env.num_envs=2", "agent.lr=1e-4"])
    assert (cfg.agent.gamma, cfg.env.num_envs, cfg.agent.lr) == (0.5, 2, 1e-4)


def test_preset_none_keeps_the_values_of_the_agent() -> None:
    own = yaml.safe_load((CONFIGS / "agent" / "ppo.yaml").read_text())
    for env in ("cartpole", "pong"):
        agent = compose([f"env={env}", "preset=none"]).agent
        assert (agent.gamma, agent.clip_range, agent.epochs) == (
            own["gamma"],
            own["clip_range"],
            own["epochs"],
        )


def test_sections_of_presets_are_for_existing_agents_and_options() -> None:
    parts = {group.name for group in (CONFIGS / "agent").iterdir() if group.is_dir()}
    options = {
        f"agent/{group}={f.stem}" for group in parts for f in (CONFIGS / "agent" / group).glob("*.yaml")
    }
    titles = {title for found in SECTIONS.values() for title in found}
    known = {*AGENTS, "dev"} | options
    wrong = [one for one in titles if set(one.split()) - known or len(one.split()) > 2]
    assert not wrong
    assert set(SECTIONS) <= {f.stem for f in (CONFIGS / "env").glob("*.yaml")} | {"dev"}
    assert len(list((CONFIGS / "preset").iterdir())) <= 60


def test_presets_of_base_agents_apply_before_those_of_the_agent() -> None:
    assert applied("agent=rainbow", "env=pong") == [
        *("atari: agent/value=categorical", "atari: agent/memory=prioritized", "atari: agent/target=replace"),
        *("atari: dqn", "rainbow", "atari: rainbow agent/target=replace", "atari: rainbow"),
    ]
    assert applied("agent=td3", "env=pendulum") == ["pendulum: ddpg", "td3"]
    assert applied("agent=tqc", "env=swimmer") == ["mujoco: sac", "swimmer: sac", "tqc", "mujoco: tqc"]
    assert applied("env=video_checkers") == ["atari: ppo"]
    cfg = compose(["agent=rainbow", "env=pong"])
    assert (cfg.agent.batch_size, cfg.agent.lr, cfg.agent.memory.storage) == (32, 6.25e-5, "mmap")


def test_presets_of_a_part_apply_exactly_where_it_is_used() -> None:
    for agent in ("c51", "rainbow", "dqn agent/value=categorical"):
        cfg = compose([*f"agent={agent}".split(), "env=pong"])
        assert (cfg.agent.value.v_min, cfg.agent.value.v_max) == (-10, 10)
    assert compose(["agent=dqn", "env=pong"]).agent.exploration.epsilon.horizon == 250_000
    for overrides in (
        ["agent=rainbow"],
        ["agent=dqn", "agent/exploration=boltzmann"],
        ["agent=dqn", "agent/target=polyak"],
    ):
        composed(*overrides, "env=pong")
    cfg = compose(["agent=dqn", "env=pong", "preset=none"])
    assert (cfg.agent.exploration.epsilon.horizon, cfg.agent.memory.storage) == (10_000, "ram")


def test_presets_of_agent_and_part_apply_after_those_of_the_part() -> None:
    for agent, epsilon, every in (("dqn", 0.05, 500), ("double_dqn", 0.01, 50), ("dueling_dqn", 0.01, 50)):
        cfg = compose([f"agent={agent}", "env=lunar_lander"])
        assert (cfg.agent.exploration.epsilon.end, cfg.agent.target.every) == (epsilon, every)
    other = ["agent/exploration=boltzmann", "agent/target=polyak", "agent/memory=prioritized"]
    assert composed("agent=double_dqn", "env=lunar_lander", *other).agent.config.memory.config.beta == 0


@pytest.mark.parametrize(
    ("overrides", "optimizer"),
    [
        (["agent=a2c"], "RMSProp"),
        (["agent=a2c", "env=pong"], "RMSProp"),
        (["agent=a2c", "env=lunar_lander"], "Adam"),
        (["agent=sil_a2c", "env=lunar_lander"], "Adam"),
        (["agent=a2c", "env=lunar_lander", "preset=none"], "RMSProp"),
        (["agent=a2c", "env=gymnasium", "env.id=LunarLander-v3", "preset=a2c_lunar_lander"], "Adam"),
        (["agent=a2c", "env=lunar_lander", "agent/optimizer=rmsprop"], "RMSProp"),
        (["agent=a2c", "agent/optimizer=adam"], "Adam"),
    ],
)
def test_preset_can_choose_another_optimizer(overrides: list[str], optimizer: str) -> None:
    assert composed(*overrides).agent.config.optimizer.target == f"labrl.learning.optimizers.{optimizer}"
    cfg = compose(overrides, with_hydra=True)
    recorded = choices_of(cfg.hydra)["agent/optimizer"]
    assert compose([*overrides, f"agent/optimizer={recorded}"]).agent == cfg.agent
    assert recorded in OPTIMIZERS
    assert all((CONFIGS / group).is_dir() for group in choices_of(cfg.hydra))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_chosen_optimizer_replaces_all_keys_of_a_presets_optimizer(optimizer: str) -> None:
    overrides = ["agent=a2c", f"agent/optimizer={optimizer}", "preset=none"]
    chosen = compose(overrides).agent.optimizer
    if optimizer == "auto":
        chosen = compose(["agent=a2c", "agent/optimizer=adam"]).agent.optimizer
    assert compose([*overrides[:2], "env=lunar_lander"]).agent.optimizer == chosen


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
        ("agent=random", []),
        ("preset=none", []),
        ("preset=cartpole env=pong", ["cartpole: ppo"]),
        ("preset=ppo_cartpole env=pong", ["cartpole: ppo"]),
        ("preset=breakout env=cartpole", ["atari: ppo"]),
        ("preset=walker2d env=cartpole", ["mujoco: ppo"]),
        ("preset=lunar_lander agent=sil_ppo env=pong", ["lunar_lander: ppo", "sil_ppo"]),
        (
            "agent=dqn env=cartpole agent/exploration=boltzmann",
            ["cartpole: agent/target=replace", "cartpole: dqn"],
        ),
        ("agent=sarsa env=acrobot", ["acrobot: agent/exploration=epsilon_greedy"]),
        ("agent=a2c env=lunar_lander agent/optimizer=rmsprop", ["lunar_lander: a2c"]),
        (
            "agent=crossq env=lunar_lander_continuous",
            ["lunar_lander: crossq"],  # which the section of the continuous version extends
        ),
        ("search=sac env=pendulum", ["pendulum: sac"]),
    ],
)
def test_applied_presets_are_listed_in_order_of_precedence(overrides: str, presets: list[str]) -> None:
    assert applied(*overrides.split()) == presets


def test_preset_of_a_user_is_listed_with_its_file(tmp_path: Path) -> None:
    file = tmp_path / "preset" / "ppo_pong.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\nagent: {gamma: 0.9}\n")
    assert applied("env=pong", config_dir=tmp_path) == ["atari: ppo", "ppo_pong"]
    assert origins("agent.gamma", ["env=pong"], tmp_path)["agent.gamma"][-1] == (str(file), 0.9)


def test_preset_of_a_user_for_a_part_is_applied(tmp_path: Path) -> None:
    (tmp_path / "preset").mkdir()
    text = "# @package _global_\nagent: {target: {tau: 0.25}}\n"
    (tmp_path / "preset" / "polyak_cartpole.yaml").write_text(text)
    overrides = ["agent=dqn", "env=cartpole"]
    assert compose([*overrides, "agent/target=polyak"], tmp_path).agent.target.tau == 0.25
    assert "tau" not in compose(overrides, tmp_path).agent.target


@pytest.mark.parametrize("part", ["memory", "exploration", "value", "target"])
def test_every_option_of_every_part_of_dqn_composes(part: str) -> None:
    for option in sorted(f.stem for f in (CONFIGS / "agent" / part).glob("*.yaml")):
        for agent in ("recurrent_dqn",) if option == "sequences" else ("dqn", "rainbow"):
            composed(f"agent={agent}", f"agent/{part}={option}", "env=pong", "agent.network.noisy=0.5")


def test_preset_of_a_user_for_a_family_is_applied(tmp_path: Path) -> None:
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset" / "random_atari.yaml").write_text("# @package _global_\nenv: {num_envs: 3}\n")
    (tmp_path / "preset" / "random_pong.yaml").write_text("# @package _global_\nenv: {frame_stack: 2}\n")
    cfg = compose(["agent=random", "env=pong"], tmp_path)
    assert (cfg.env.num_envs, cfg.env.frame_stack) == (3, 2)


@pytest.mark.parametrize(("num_envs", "horizon"), [(1, 2048), (3, 640), (4, 512), (8, 256), (100, 32)])
def test_rollouts_on_pendulum_are_multiples_of_the_minibatch(num_envs: int, horizon: int) -> None:
    config = composed("env=pendulum", f"env.num_envs={num_envs}")
    check(config)
    assert config.agent.config.horizon == horizon


@pytest.mark.extended
@pytest.mark.parametrize(
    "env", ["bipedal_walker", "pong", *(pytest.param(env, marks=pytest.mark.matrix) for env in ENVS)]
)
@pytest.mark.parametrize("agent", AGENTS)
def test_dev_learns_early_with_any_pair(agent: str, env: str) -> None:
    overrides = ["meta=dev", f"agent={agent}", f"env={env}"]
    if agent in ("c51", "rainbow") and env in CONTINUOUS:
        overrides += ["agent.value.v_min=-1", "agent.value.v_max=1"]
    config = composed(*overrides)
    # Refused if training would end before the first update.
    short = dataclasses.replace(config.env.config, max_frame=300)
    check_keys(dataclasses.replace(config, env=dataclasses.replace(config.env, config=short)))
    assert config.env.config.max_frame <= 64 + 64 * config.env.config.num_envs
    assert config.meta.max_wall is not None
    assert config.meta.max_wall <= 30


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


def hidden(config: Any, plain: Any, key: str = "") -> list[str]:
    """Return the fields of the dataclasses in `config` that the plain configuration does not contain."""
    if isinstance(config, Component):
        return hidden(config.config, plain, key)
    if dataclasses.is_dataclass(config):
        names = [field.name for field in dataclasses.fields(config)]
        missing = [f"{key}.{name}" for name in names if name not in plain]
        # The warm-up of a schedule appears in the configuration only where there is one.
        missing = [name for name in missing if not name.endswith(".warmup")]
        shown = [name for name in names if name in plain]
        return missing + [
            n for name in shown for n in hidden(getattr(config, name), plain[name], f"{key}.{name}")
        ]
    if isinstance(config, dict) and isinstance(plain, dict):  # a word may stand for several values
        return [n for name, part in config.items() for n in hidden(part, plain[name], f"{key}.{name}")]
    return []


@pytest.mark.parametrize(
    "overrides",
    [
        *[[f"env={env}"] for env in [*ENVS, "pong"]],
        *[[f"agent/network={network}"] for network in NETWORKS],
        ["agent=random"],
        ["preset=none"],
        ["meta=dev"],
        ["env=gymnasium", "env.id=CartPole-v1"],
    ],
    ids=str,
)
def test_every_field_is_in_the_composed_configuration(overrides: list[str]) -> None:
    plain = to_plain(compose(overrides))
    assert hidden(resolve(plain), plain) == []


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


def test_origins_of_a_key_are_listed_in_order_of_precedence(tmp_path: Path) -> None:
    def found(key: str, *overrides: str) -> list[tuple[str, Any]]:
        return [(Path(origin).name, value) for origin, value in origins(key, [*overrides])[key]]

    assert found("agent.gamma") == [("ppo.yaml", 0.99), ("cartpole.yaml, section ppo", 0.98)]
    assert found("agent.gamma", "preset=none", "agent.gamma=0.5") == [
        ("ppo.yaml", 0.99),
        ("override agent.gamma=0.5", "0.5"),
    ]
    assert [one for one, _ in found("agent.lr", "agent.lr.start=1")] == [
        *("ppo.yaml", "cartpole.yaml, section ppo", "override agent.lr.start=1")
    ]
    assert found("env.game", "env=pong", "agent=dqn") == [("atari.yaml", "???"), ("env=pong", "pong")]
    assert [*origins("agent.network.torso.mlp", ["agent=dqn"])] == [
        f"agent.network.torso.mlp.{name}" for name in ("hidden", "activation", "initialization", "layer_norm")
    ]
    every = origins("", ["experiment=atari/v4", "env=pong"])
    assert every.keys() >= {"env.sticky_actions", "meta.max_session", "transforms.reward._target_", "seed"}
    assert [key for key, one in every.items() if not one] == []
    assert Path(every["env.sticky_actions"][-1][0]).name == "v4.yaml"
    with pytest.raises(InputError) as caught:
        origins("agent.gama", [])
    assert (caught.value.code, caught.value.key) == ("unknown-key", "agent.gama")


def test_first_line_of_each_config_file_is_a_command() -> None:
    for file in CONFIGS.rglob("*.yaml"):
        lines = [line for line in file.read_text().splitlines() if not line.startswith("# @package")]
        assert lines[0].startswith("# labrl"), file


def test_preset_of_a_user_can_extend_one_of_labrl(tmp_path: Path) -> None:
    for group in ("agent", "preset"):
        (tmp_path / group).mkdir()
    (tmp_path / "agent" / "my_dqn.yaml").write_text("defaults:\n  - dqn\n  - _self_\nbatch_size: 16\n")
    overrides = ["agent=my_dqn", "env=cartpole"]
    assert compose(overrides, tmp_path).agent.batch_size == 16
    text = "# @package _global_\ndefaults:\n  - dqn_cartpole\n  - _self_\nagent: {n_step: 2}\n"
    (tmp_path / "preset" / "my_dqn_cartpole.yaml").write_text(text)
    agent = compose(overrides, tmp_path).agent
    assert (agent.n_step, agent.batch_size) == (2, 128)


@pytest.mark.parametrize(
    ("overrides", "reward"),
    [
        (["env=pendulum"], {"NormalizeReward": {"gamma", "clip", "epsilon", "window"}}),
        (
            ["env=pendulum", "transforms.reward.clip=5"],
            {"NormalizeReward": {"gamma", "clip", "epsilon", "window"}},
        ),
        (["env=pendulum", "transforms/reward=clip"], {"ScaleReward": {"scale", "shift", "low", "high"}}),
        (
            ["env=pong", "transforms/reward=scale", "transforms.reward.scale=0.1"],
            {"ScaleReward": {"scale", "shift", "low", "high"}},
        ),
        (
            ["env=pendulum", "transforms.reward={_target_: labrl.agents.transforms.SignReward}"],
            {"SignReward": set()},
        ),
        (["env=pendulum", "transforms/reward=none"], {}),
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


def test_key_may_be_removed_and_added_again() -> None:
    assert resolve(compose(["~agent.lr", "+agent.lr=1e-3"])).agent.config.lr == 1e-3
