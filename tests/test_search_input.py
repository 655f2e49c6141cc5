"""A search that cannot work is refused before its first trial, with what to type; nothing is left behind."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from labrl.cli import main
from labrl.config.compose import compose, resolve, to_plain
from labrl.lab.search.begin import unwatched
from labrl.lab.search.checks import check_ready, check_space
from labrl.lab.search.recipe import BEST, Recipe
from labrl.lab.search.space import Space

SEARCH = ["-m", "hydra/sweeper=optuna", "env=cartpole", "meta.max_trial=2"]
LR = "agent.lr=tag(log, interval(1e-4, 1e-2))"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["agent.lrr=interval(0.1, 1)"], "agent.lrr: no such key. Did you mean agent.lr?"),
        (["agent.lr=interval(-1.0, 1.0)"], "agent.lr=interval(-1.0, 1.0): agent.lr must be"),
        (["agent.epochs=interval(1,4)"], "Whole numbers alone are written 'agent.epochs=int(interval(1,4))'"),
        (["agent.epochs=tag(log, interval(1,4))"], "'agent.epochs=tag(log, int(interval(1,4)))'"),
        (["agent.lr=choice(1e-3, a)"], "agent.lr=choice(1e-3, a): agent.lr must be a finite number or"),
        (
            ["agent.network.torso.mlp.hidden=choice([64], [64, x])"],
            "hidden[1] must be a whole number, got 'x'",
        ),
        (
            ["agent.lr=choice(1e-3, {kind: liner, start: 1, end: 0, horizon: 9})"],
            "agent.lr.kind must be one of",
        ),
        (["agent.normalize_advantage=choice(true, yes please)"], "agent.normalize_advantage must be true or"),
        (["env.num_envs=choice(8, 4, 0)"], "env.num_envs must be at least 1, got 0"),
        (["+agent.lrate=choice(1, 2)"], "+agent.lrate=choice(1, 2): agent.lrate: no such key."),
        (["~agent.lr", "+agent.lr=choice(1e-3, a)"], "agent.lr must be a finite number or"),
        (["agent/network=choice(auto, mpl)"], "agent/network=mpl: no such option. Did you mean"),
        (["agent.lr=interval(2, 1)"], "agent.lr=interval(2, 1): the range is empty"),
        (
            ["agent=choice(ppo, dqn)", "agent.clip_range=interval(0.1, 0.3)"],
            "does not fit: agent.clip_range: no such key",
        ),
        ([], "there is nothing to search"),
        (
            ["search=ppo", "agent=dqn"],
            "search=ppo: agent=dqn has no agent.horizon, agent.epochs, agent.gae_lambda, agent.clip_range, "
            "agent.entropy_coef, which this space searches: take search=dqn, or its own agent",
        ),
        (["search=dqn", "agent=choice(dqn, reinforce)"], "search=dqn: agent=reinforce has no"),
        (
            ["search=dqn", "agent.clip_range=interval(0.1, 0.2)"],
            "does not fit: agent.clip_range: no such key",
        ),
        ([LR, "meta.eval_frequency=1e6"], "set meta.eval_frequency=<less>"),
        (
            [LR, "env.max_frame=2e4", "search.pruner.grace_period=19999"],
            "search.pruner.grace_period=19999: the last evaluation",
        ),
        ([LR, "search/pruner=median", "search.pruner.warmup=1e6"], "search.pruner.warmup=1000000"),
        ([LR, "search.objective=[]"], "search.objective"),
        ([LR, "search.objective=[auc,auc]"], "or a list with each measure once, got"),
        ([LR, "search.objective=reward"], "search.objective must be"),
        ([LR, "hydra.sweeper.direction=[maximize,minimize]"], "one for each of search.objective"),
        ([LR, "hydra.sweeper.n_jobs=0"], "hydra.sweeper.n_jobs=0: must be at least 1"),
        ([LR, "hydra.sweeper.n_jobs=1.5"], "hydra.sweeper.n_jobs=1.5: must be a whole number"),
        ([LR, "hydra.sweeper.n_trials=many"], "hydra.sweeper.n_trials=many: must be a whole number"),
        ([LR, "hydra.sweeper.max_failure_rate=2"], "hydra.sweeper.max_failure_rate=2: must be a number"),
        ([LR, "hydra.sweeper.storage=study.db", "hydra.sweeper.study_name=x"], "must be sqlite:///<file>"),
        ([LR, "hydra.sweeper.storage=sqlite:///study.db"], "hydra.sweeper.study_name=<name>"),
        ([LR, "hydra/sweeper/sampler=grid"], "a grid needs single values"),
        (
            [LR, "hydra/sweeper/sampler=tpe", "hydra.sweeper.sampler.n_startup_trials=many"],
            "n_startup_trials",
        ),
    ],
)
def test_wrong_input_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEARCH, *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(Path("runs").glob("*"))


def test_a_database_that_does_not_answer_is_told_without_the_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("psycopg")
    url = "postgresql://labrl:secret@127.0.0.1:1/labrl"
    words = [LR, f"hydra.sweeper.storage={url}", "hydra.sweeper.study_name=x"]
    assert main([*SEARCH, *words]) == 2
    told = capsys.readouterr().err
    assert "hydra.sweeper.storage=postgresql://labrl:***@127.0.0.1:1/labrl: cannot be reached" in told
    assert "secret" not in told


def test_what_contradicts_another_sample_only_is_not_refused() -> None:
    words = [
        "agent.lr=choice(1e-3, {kind: linear, start: 1e-3, end: 0, horizon: 1e4})",
        "agent.network.torso.mlp.hidden=choice([64, 64], [32])",
        "agent.horizon=choice(32, 100)",  # 800 steps are no whole minibatches of 256
        "agent.gae_lambda=choice(0.9, ${agent.gamma})",
    ]
    check_space(Recipe(Space.of({}, {}, words), {"agent": "ppo", "env": "cartpole"}, []), None)


@pytest.mark.parametrize("typed", ["meta.report=true", "++meta.report=true", "meta.videos=true"])
def test_trials_report_nothing_of_their_own_unless_it_is_typed(typed: str) -> None:
    recipe = Recipe(Space.of({}, {}, [LR, "env=cartpole", typed]), {"agent": "ppo", "env": "cartpole"}, [])
    for words, key in (([], None), ([typed], typed.lstrip("+").partition("=")[0])):
        meta = to_plain(compose([*recipe.configuration({"agent.lr": 1e-3}), *unwatched(words)]))["meta"]
        kept = {name: meta[name] for name in ("progress", "report", "videos")}
        asked = {} if key is None else {key.partition(".")[2]: True}
        assert kept == {"progress": False, "report": False, "videos": False, **asked}


def test_a_space_without_a_search_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search=ppo"]) == 2
    assert "labrl -m hydra/sweeper=optuna search=<space>" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac", "td3", "ddpg", "crossq"])
def test_a_ready_space_brings_its_agent_with_its_presets_and_its_number_of_trials(name: str) -> None:
    env = "cartpole" if name == "dqn" else "pendulum"
    cfg = compose([f"search={name}", f"env={env}"], with_hydra=True)
    choices = dict(cfg.hydra.runtime.choices)
    assert choices["agent"] == name
    assert cfg.meta.max_trial == 30
    recipe = Recipe(Space.of(cfg.search.space, {}, []), choices, [])
    assert check_space(recipe, None) == resolve(compose([f"agent={name}", f"env={env}"]))


def test_labrls_sweeper_wins_over_the_one_of_the_same_name_and_keeps_its_samplers() -> None:
    for sampler in ("tpe", "gp", "cmaes", "random", "grid", "qmc", "nsgaii"):
        words = ["hydra/sweeper=optuna", f"hydra/sweeper/sampler={sampler}", "meta.max_trial=7"]
        node = compose(words, with_hydra=True).hydra.sweeper
        assert node._target_.startswith("labrl.")
        assert node.n_trials == 7
    assert compose(["hydra/sweeper=optuna"], with_hydra=True).hydra.sweeper.n_trials == 20


@pytest.mark.parametrize("more", [[], ["experiment=slm_lab/acrobot"]])
def test_the_recipe_of_the_best_composes_to_the_same_configuration(tmp_path: Path, more: list[str]) -> None:
    words = [
        "env=acrobot",
        "agent/network=mlp",
        "+env.kwargs.new='a, b'",
        "transforms.reward=null",
        "env.num_envs=4",
    ]
    space = Space.of({}, {}, [*words, *more, LR, "agent.network.torso.hidden=choice([64,64],[32])"])
    choices = {"agent": "ppo", "env": "acrobot", "agent/network": "mlp", "experiment": "slm_lab/acrobot"}
    recipe = Recipe(space, choices, [])
    params = {"agent.lr": 2.5e-4, "agent.network.torso.hidden": "[32]"}
    path = tmp_path / BEST
    path.parent.mkdir()
    path.write_text(recipe.as_yaml(params, None, tmp_path, ["told"]))
    assert to_plain(compose(["experiment=best"], tmp_path)) == to_plain(compose(recipe.configuration(params)))
    assert to_plain(compose(["experiment=best", "agent.lr=1"], tmp_path))["agent"]["lr"] == 1


PAGE = (Path(__file__).parents[1] / "docs" / "search.md").read_text().replace("\\\n", " ")
COMMANDS = re.findall(r"^    (labrl -m hydra/sweeper=optuna .*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page_compose_and_have_something_to_search(command: str) -> None:
    words = [word for word in shlex.split(command.partition(" #")[0])[2:] if word]
    searching = [word for word in words if re.search(r"=(tag|interval|choice|range)\(", word)]
    cfg = compose([word for word in words if word not in searching], with_hydra=True)
    config = resolve(cfg)
    found = Space.of(config.search.space, {}, [word for word in words if not word.startswith("hydra")])
    assert found.distributions
    assert cfg.hydra.sweeper.n_trials >= 20
    recipe = Recipe(found, dict(cfg.hydra.runtime.choices), [])
    check_space(recipe, None)
    check_ready(cfg.hydra.runtime.choices["search"], recipe, None)


def test_a_refused_search_leaves_alone_what_was_there_before() -> None:
    Path("results").mkdir()
    Path("results/notes.md").write_text("mine")
    Path("empty").mkdir()
    for folder in ("results", "empty"):
        assert main([*SEARCH, LR, "hydra/sweeper/sampler=grid", f"hydra.sweep.dir={folder}"]) == 2
    assert [path.name for path in Path("results").iterdir()] == ["notes.md"]
    assert not list(Path("empty").iterdir())


def test_a_space_that_brings_more_than_its_agent_is_refused_with_what_trials_would_lack(
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
    assert main(["-m", "--config-dir", "my", "hydra/sweeper=optuna", "env=cartpole", "search=mine"]) == 2
    told = capsys.readouterr().err
    assert (
        "search=mine sets agent.lr.horizon=30000.0 env.max_frame=30000.0, which its trials would not" in told
    )
