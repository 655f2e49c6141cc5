"""Tests of the input of searches: a search that cannot work is refused before its first trial."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from labrl.cli import main
from labrl.config.compose import compose, resolve, to_plain
from labrl.config.keys import key_of
from labrl.errors import WRONG_INPUT
from labrl.experiment.search.begin import check_ready, check_space
from labrl.experiment.search.queue import OF_A_TRIAL
from labrl.experiment.search.space import BEST, Space

SEARCH = ["-m", "hydra/sweeper=optuna", "env=cartpole", "meta.max_trial=2"]
LR = "agent.lr=tag(log, interval(1e-4, 1e-2))"
WRONG_STORAGE = ["hydra.sweeper.storage=study.db", "hydra.sweeper.study_name=x"]


pytestmark = pytest.mark.usefixtures("own_folder")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        # the space
        ([], "search"),
        (["agent.lrr=interval(0.1, 1)"], "agent.lrr"),
        (["agent.lr=interval(-2.0, -1.0)"], "agent.lr"),
        (["agent/network=choice(mpl, auto)"], "mpl"),
        (["~agent.lr", "+agent.lr=choice(a, 1e-3)"], "agent.lr"),
        (["search=ppo", "agent=dqn"], "agent.horizon"),
        ([LR, "search/pruner=asha,none"], "search/pruner=asha,none"),
        # the trials and their number
        ([LR, "agent.epochs=0"], "agent.epochs"),
        ([LR, "meta.num_cpus=9999", "hydra.sweeper.n_jobs=2"], "meta.num_cpus"),
        ([LR, "hydra/launcher=joblib"], "hydra/launcher"),
        # objective, pruner, sampler, storage
        ([LR, "search.objective=reward"], "search.objective"),
        ([LR, "search.objective=info/speed"], "search.objective"),
        ([LR, "search/pruner=median", "search.pruner.startup_trials=3"], "search.pruner.startup_trials"),
        ([LR, "hydra/sweeper/sampler=grid"], "hydra.sweeper.sampler"),
        ([LR, "hydra.sweeper.sampler.n_startup_trials=many"], "hydra.sweeper.sampler"),
        ([LR, "hydra.sweeper.custom_search_space=a.b"], "hydra.sweeper.custom_search_space"),
        ([LR, "hydra.sweeper.storage=sqlite:///study.db"], "hydra.sweeper.study_name"),
        ([LR, *WRONG_STORAGE], "hydra.sweeper.storage=study.db"),
    ],
)
def test_wrong_search_is_refused_with_its_key_and_leaves_no_folder(
    overrides: list[str], key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SEARCH, *overrides]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert key in message
    assert "Traceback" not in message
    assert not list(Path("runs").glob("*"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["search=ppo", "hydra.sweeper.n_trials=3"],
        # Regression test: the keys were composed with the default agent, which lacks them.
        ["agent=choice(sac, dqn)", "agent.learning_starts=100", "agent.memory.capacity=choice(1000, 2000)"],
    ],
)
def test_number_of_trials_replaces_that_of_the_space_and_keys_are_those_of_searched_options(
    overrides: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    # The storage is checked last, so that only this error appears if the overrides are accepted.
    assert main([*SEARCH[:-1], *overrides, *WRONG_STORAGE]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "hydra.sweeper.storage=study.db" in message
    assert "n_trials" not in message
    assert message.count("\n") == 1


def test_error_of_an_unreachable_database_hides_the_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://labrl:secret@127.0.0.1:1/labrl"
    overrides = [LR, f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=x"]
    assert main([*SEARCH, *overrides]) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "hydra.sweeper.storage=postgresql://labrl:***@127.0.0.1:1/labrl" in message
    assert "secret" not in message


def test_choices_that_contradict_only_in_combination_are_accepted() -> None:
    overrides = [
        "agent.lr=choice(1e-3, {kind: linear, start: 1e-3, end: 0, horizon: 1e4})",
        "agent.network.torso.mlp.hidden=choice([64, 64], [32])",
        "agent.horizon=choice(32, 100)",  # 800 steps cannot be divided into minibatches of 256
        "agent.gae_lambda=choice(0.9, ${agent.gamma})",
    ]
    check_space(Space.of({}, overrides, {"agent": "ppo", "env": "cartpole"}))


@pytest.mark.parametrize("typed", ["meta.report=true", "++meta.report=true", "meta.videos=true"])
def test_trials_make_no_report_or_videos_unless_asked_for(typed: str) -> None:
    for overrides in ([], [typed]):
        space = Space.of({}, [LR, *overrides], {"agent": "ppo", "env": "cartpole"})
        meta = to_plain(compose([*OF_A_TRIAL, *space.overrides({"agent.lr": 1e-3})]))["meta"]
        asked = {key_of(one).partition(".")[2]: True for one in overrides}
        kept = {name: meta[name] for name in ("progress", "report", "videos")}
        assert kept == {"progress": False, "report": False, "videos": False, **asked}


def test_ready_space_without_a_search_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for missing in (["search=ppo"], ["search=ppo", "hydra/sweeper=optuna"], ["-m", "search=ppo"]):
        assert main(missing) == WRONG_INPUT
        message = capsys.readouterr().err
        assert "-m hydra/sweeper=optuna" in message
        assert "<space>" not in message


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "td3", "ddpg", "crossq"])
def test_ready_space_selects_its_agent_presets_and_number_of_trials(name: str) -> None:
    env = "cartpole" if name == "dqn" else "pendulum"
    cfg = compose([f"search={name}", f"env={env}"], with_hydra=True)
    choices = dict(cfg.hydra.runtime.choices)
    assert choices["agent"] == name
    assert cfg.meta.max_trial == 30
    recipe = Space.of(cfg.search.space, [], choices)
    assert check_space(recipe) == resolve(compose([f"agent={name}", f"env={env}"]))


def test_best_recipe_composes_to_the_configuration_of_the_best_trial(tmp_path: Path) -> None:
    overrides = ["env=acrobot", "agent/network=mlp", "+env.kwargs.new='a, b'", "transforms.reward=null"]
    overrides += ["env.num_envs=4", "experiment=slm_lab/acrobot"]
    searched = [LR, "agent.network.torso.hidden=choice([64,64],[32])"]
    choices = {"agent": "ppo", "env": "acrobot", "agent/network": "mlp", "experiment": "slm_lab/acrobot"}
    recipe = Space.of({}, [*overrides, *searched], choices)
    params = {"agent.lr": 2.5e-4, "agent.network.torso.hidden": "[32]"}
    path = tmp_path / BEST
    path.parent.mkdir()
    path.write_text(recipe.as_yaml(params, tmp_path, ["a comment"]))
    assert to_plain(compose(["experiment=best"], tmp_path)) == to_plain(compose(recipe.overrides(params)))
    assert to_plain(compose(["experiment=best", "agent.lr=1"], tmp_path))["agent"]["lr"] == 1


PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "search.md").read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"^    (labrl -m hydra/sweeper=optuna .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_search_guide_compose_with_a_search_space(command: str) -> None:
    overrides = [override for override in shlex.split(command.partition(" #")[0])[2:] if override]
    searching = [override for override in overrides if re.search(r"=(tag|interval|choice|range)\(", override)]
    cfg = compose([override for override in overrides if override not in searching], with_hydra=True)
    config = resolve(cfg)
    choices = dict(cfg.hydra.runtime.choices)
    found = Space.of(config.search.space, [one for one in overrides if not one.startswith("hydra")], choices)
    assert found.distributions
    check_space(found)
    check_ready(found)


def test_refused_search_leaves_existing_folders_unchanged() -> None:
    Path("results").mkdir()
    Path("results/notes.md").write_text("mine")
    Path("empty").mkdir()
    for folder in ("results", "empty"):
        assert main([*SEARCH, LR, "hydra/sweeper/sampler=grid", f"hydra.sweep.dir={folder}"]) == WRONG_INPUT
    assert [path.name for path in Path("results").iterdir()] == ["notes.md"]
    assert not list(Path("empty").iterdir())


def test_space_that_sets_more_than_its_agent_is_refused_with_a_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("my/search").mkdir(parents=True)
    Path("my/search/mine.yaml").write_text(
        "# @package _global_\n"
        "defaults: [none@search, _self_, override /agent: dqn]\n"
        "env: {max_frame: 3e4}\n"
        "meta: {max_trial: 2}\n"
        "search: {space: {agent.lr: 'tag(log, interval(1e-4, 1e-2))'}}\n"
    )
    overrides = ["-m", "--config-dir", "my", "hydra/sweeper=optuna", "env=cartpole", "search=mine"]
    assert main(overrides) == WRONG_INPUT
    message = capsys.readouterr().err
    assert "search=mine" in message
    assert "agent.lr.horizon=30000.0 env.max_frame=30000.0" in message
