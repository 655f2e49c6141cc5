"""Every part that the package has, or ever gets, comes back from a checkpoint with an equal future.

Agents, their parts, transforms and callbacks are found in the package, so that one which is added later and
forgets its state fails here without anybody having thought of it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from exact_cases import ALIKE, SMALL, rows, small, state, unequal
from test_callbacks_tensorboard import scalars

import labrl.agents
import labrl.agents.transforms
import labrl.session.callbacks
from labrl.config import config_folder
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.errors import InputError
from labrl.session.callbacks import Callback
from labrl.session.session import Session
from labrl.storage.checkpoint import CheckpointStore
from labrl.storage.run_folder import RunFolder
from labrl.trial.trial import check

CONFIGS = config_folder()
AGENTS = sorted(path.stem for path in (CONFIGS / "agent").glob("*.yaml"))
OPTIONS = {
    f"agent/{path.parent.name}={path.stem}"
    for path in (CONFIGS / "agent").glob("*/*.yaml")
    if not path.stem.startswith("_")
}
SHORT = ["env.max_frame=224", "env.num_envs=4", "meta.log_frequency=64", "meta.eval_frequency=92"]
SHORT += ["meta.rigorous_eval=1", "env.max_episode_steps=40"]
STOP = 164
"""Frame in the middle of a rollout, and of a run."""


class Watch(Callback):
    """Looks at everything all the time, and stops the session at a frame."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at

    def step(self, session: Any) -> None:
        session.agent.metrics()
        if session.clock.frame % 64 == 0:
            session.state_dict()
        if session.clock.frame >= self.stop_at:
            signal.raise_signal(signal.SIGTERM)


def session_in(folder: Path, config: TrialConfig) -> Session:
    run = RunFolder(folder) if folder.exists() else RunFolder.create(folder)
    return Session(config, 0, run.session(0), num_threads=1)


def broken_off(folder: Path, config: TrialConfig, frame: int) -> None:
    session = session_in(folder, config)
    session.callbacks.insert(0, Watch(frame))
    session.run()
    assert session.clock.frame == frame


def gone_on(folder: Path, config: TrialConfig, forget: str | None = None) -> None:
    """Restore from the disk and run to the end; `forget`: a part whose state is as if never saved."""
    latest = CheckpointStore(folder / "session_0" / "checkpoints", 1).latest()
    assert latest is not None
    session = session_in(folder, config)
    if forget is not None:
        session.env.reset()
        fresh = session.state_dict()
        if forget == "Evaluate:0":
            latest.state["callbacks"][forget] = fresh["callbacks"][forget]
        else:
            latest.state[forget] = fresh[forget]
    session.load_state_dict(latest.state)
    session.run()


def future(folder: Path) -> dict[str, Any]:
    """Return all that can be seen of a run, times aside."""
    session = folder / "session_0"
    best = CheckpointStore(session / "checkpoints", 1).best()
    points = scalars(session / "tensorboard") if (session / "tensorboard").exists() else {}
    progress = json.loads((session / "progress.json").read_text())
    return {
        "train": rows(session / "train.csv"),
        "eval": rows(session / "eval.csv"),
        "state": state(session),
        "best": None if best is None else best.frame,
        "board": {tag: points[tag] for tag in points if not tag.endswith(("wall", "fps"))},
        "progress": {key: progress[key] for key in ("frame", "episode", "return_mean", "status")},
    }


@functools.cache
def unbroken_future(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Return the future of an unbroken run of `overrides`; several tests compare with the same."""
    with tempfile.TemporaryDirectory() as folder:
        session_in(Path(folder) / "run", resolve(compose(list(overrides)))).run()
        return future(Path(folder) / "run")


def changed_futures(
    folder: Path, overrides: list[str], frame: int = STOP, forget: str | None = None
) -> list[str]:
    """Return what differs between the unbroken run of `overrides` and one that was interrupted at `frame`."""
    config = resolve(compose(overrides))
    broken_off(folder / "run", config, frame)
    gone_on(folder / "run", config, forget)
    return unequal(unbroken_future(tuple(overrides)), future(folder / "run"))


def modules(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(found.name)


def classes(package: ModuleType) -> Iterator[type]:
    """Those that a module of `package` defines."""
    for module in modules(package):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if found.__module__ == module.__name__:
                yield found


@pytest.mark.parametrize(
    "agent", [pytest.param(name, marks=pytest.mark.slow) if name in ALIKE else name for name in AGENTS]
)
def test_every_agent_goes_on_exactly(agent: str, tmp_path: Path) -> None:
    overrides = [*small(agent, "cartpole"), *SHORT]
    try:
        check(resolve(compose(overrides)))
    except InputError:  # continuous actions only
        overrides = [*small(agent, "pendulum"), *SHORT]
    assert changed_futures(tmp_path, overrides) == []


def named(agent: str) -> set[str]:
    """The options that the file of an agent names as its parts."""
    defaults = yaml.safe_load((config_folder() / "agent" / f"{agent}.yaml").read_text()).get("defaults", [])
    parts = [part for one in defaults if isinstance(one, dict) for part in one.items()]
    return {f"agent/{group.removeprefix('override ')}={option}" for group, option in parts}


SOURCES = {"agent/offline=run", "agent/offline=minari"}
"""Options that need a run or a dataset: test_offline.py tests them."""


@pytest.mark.parametrize("option", sorted(OPTIONS.difference(SOURCES, *map(named, AGENTS))))
def test_every_other_part_of_an_agent_goes_on_exactly(option: str, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, *fitting(option)) == []


WITH = {"agent/optimizer=torch": ["agent.optimizer.name=AdamW"]}
"""Further overrides that an option needs."""


@functools.cache
def parts(agent: str) -> set[str]:
    """The keys of an agent, among them those of its parts."""
    return set(map(str, compose([f"agent={agent}"]).agent))


def fitting(option: str) -> tuple[list[str], int]:
    """A small run with `option`, of the first agent that takes it, and where to break it off."""
    part = option.removeprefix("agent/").partition("=")[0]
    for agent in ("ppo", "recurrent_ppo", "dqn", *AGENTS):
        if part not in parts(agent):
            continue
        pictures = ["env.max_frame=64", "env.image_size=44"]
        tasks = [("cartpole", SHORT, STOP), ("pendulum", SHORT, STOP), ("pong", pictures, 50)]
        tasks += [("lamp", ["env.max_frame=64"], 50), ("bits", SHORT, STOP)]
        for task, budget, frame in tasks:
            try:
                overrides = [*small(agent, task), *budget, option, *WITH.get(option, [])]
                check(resolve(compose(overrides)))
                return overrides, frame
            except InputError:
                continue
    raise AssertionError(f"no agent takes {option}")


@pytest.mark.parametrize(("agent", "task"), [("dqn", "cartpole"), ("sac", "pendulum")])
def test_an_optimizer_by_its_name_goes_on_exactly_off_policy_too(
    agent: str, task: str, tmp_path: Path
) -> None:
    overrides = [*small(agent, task), *SHORT, "agent/optimizer=torch", "agent.optimizer.name=NAdam"]
    assert changed_futures(tmp_path, overrides) == []


def test_a_memory_in_files_goes_on_exactly(tmp_path: Path) -> None:
    overrides = [*small("rainbow", "cartpole"), *SHORT, "agent.memory.storage=mmap"]
    assert changed_futures(tmp_path, overrides) == []


def test_every_agents_class_has_an_option_that_is_tested() -> None:
    agents = {f"{found.__module__}.{found.__name__}" for found in classes(labrl.agents) if is_agent(found)}
    targets = {str(compose([f"agent={agent}"]).agent["_target_"]) for agent in AGENTS}
    assert agents == targets == set(SMALL) - set(AGENTS)


def is_agent(found: type) -> bool:
    return hasattr(found, "Config") and all(hasattr(found, name) for name in ("act", "observe", "learn"))


TRANSFORMS = {
    "observation=normalize": [],
    "reward=clip": [],
    "reward=normalize": [],
    "reward=scale": ["transforms.tested.scale=0.5"],
    "reward=shift": ["transforms.tested.shift=0.5"],
    "reward=sign": [],
}
"""The options of transforms, with the values that they need."""


def as_tested(option: str) -> list[str]:
    """The overrides that add a transform by the name of `tested`."""
    group, _, name = option.partition("=")
    return [f"+transforms/{group}@transforms.tested={name}", *TRANSFORMS[option]]


def test_every_transform_has_an_option_that_is_tested() -> None:
    found = {kind for kind in classes(labrl.agents) if hasattr(kind, "Config") and hasattr(kind, "collect")}
    targets = {str(compose(as_tested(option)).transforms.tested["_target_"]) for option in TRANSFORMS}
    assert targets == {f"{kind.__module__}.{kind.__name__}" for kind in found}


@pytest.mark.parametrize("option", TRANSFORMS)
def test_every_transform_goes_on_exactly(option: str, tmp_path: Path) -> None:
    assert changed_futures(tmp_path, [*small("ppo", "cartpole"), *SHORT, *as_tested(option)]) == []


def test_every_callback_takes_part_in_what_is_tested(tmp_path: Path) -> None:
    """One that is not among the defaults needs a test of its own beside this one."""
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    session = session_in(tmp_path / "run", resolve(compose(overrides)))
    session.close()
    taking_part = {type(callback) for callback in session.callbacks}
    known = {found for found in classes(labrl.session.callbacks) if issubclass(found, Callback)}
    # Neither remembers anything; tests of their own: test_profile_and_crash.py, test_search_processes.py.
    on_demand = {"Profile", "ReportToSearch"}
    assert {found.__name__ for found in known} - {"Callback"} - on_demand == {
        found.__name__ for found in taking_part
    }


def test_callbacks_go_on_exactly(tmp_path: Path) -> None:
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    assert changed_futures(tmp_path, overrides, frame=204) == []


@pytest.mark.parametrize("frame", [92, 128, 184, 224])
def test_broken_off_where_rows_are_written_too(frame: int, tmp_path: Path) -> None:
    overrides = [*small("ppo", "cartpole"), *SHORT, "meta.tensorboard=true"]
    assert changed_futures(tmp_path, overrides, frame) == []


@pytest.mark.parametrize("part", ["clock", "streams", "episodes", "env", "transforms", "agent", "Evaluate:0"])
def test_a_part_that_forgets_its_state_is_found_out(part: str, tmp_path: Path) -> None:
    normalize = "+transforms/observation@transforms.seen=normalize"
    overrides = [*small("ppo", "cartpole"), *SHORT, normalize]
    # Where the best evaluation comes before the stop, there is something to forget.
    seed = next(seed for seed in range(99) if unbroken_future((*overrides, f"seed={seed}"))["best"] < STOP)
    try:
        assert changed_futures(tmp_path, [*overrides, f"seed={seed}"], forget=part)
    except AssertionError:
        raise
    except Exception:
        return  # found out already by what fits no more


def test_whatever_a_session_holds_is_saved_or_known_to_need_it_not(tmp_path: Path) -> None:
    session = session_in(tmp_path / "run", resolve(compose(small("ppo", "cartpole"))))
    session.env.reset()
    saved = set(session.state_dict())
    session.close()
    given = {"config", "index", "folder", "seed", "num_threads"}
    # The observation is the environment's, seen through the transforms; a signal ends with its process;
    # the agent itself acts, and learns alone.
    derived = {"_observation", "interruption", "team", "source", "act", "view"}
    # When a callback is due follows from the clock; the recorder saves the episodes that it was given; states
    # before the end of the budget are those of callbacks.
    derived |= {"_next_frame", "_next_time", "highlights", "evaluate", "_before_the_end"}
    # The noise scale of gradients is measured where they are computed, by `compute`.
    assert set(vars(session)) | {"noise"} == saved | given | derived
