"""The fourth step of every run: train the sessions that are due, which run at the same time."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from labrl.agents.agent import Agent, agent_class
from labrl.agents.make import learns_faster_on_gpu
from labrl.agents.policy_agent import PolicyConfig, starts_outside
from labrl.component import MAIN, Component, used_of_main
from labrl.config.compose import resolve
from labrl.config.schema import TrialConfig
from labrl.dashboards.sender import shown_on_wandb
from labrl.envs.make import backend_class, describe
from labrl.envs.protocol import UNREPEATABLE, unrepeatable
from labrl.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    TERMINATED,
    answer_to,
    described,
)
from labrl.learning.compute import Compute
from labrl.processes.output import INDENT, labeled_output, print_traceback, printing_to
from labrl.processes.secrets import redact
from labrl.processes.signals import SAVE, SIGNALS, Stopped, exit_code_of, how_it_ended
from labrl.run.folder import Status, read_json
from labrl.run.run import Run
from labrl.run.session import RunSession, SessionResult
from labrl.run.session_log import print_warnings
from labrl.run.signature import Trust, trusting
from labrl.schedules import AdaptiveRate, Schedule, largest
from labrl.seeding import session_seed
from labrl.session.callbacks.progress import TrialPanel
from labrl.session.devices import check_machine, visible_gpus
from labrl.session.interruption import Interruption
from labrl.session.main import run as run_session
from labrl.session.team import forget_shared_weights
from labrl.session.torchrun import leading
from labrl.session.worker import wait_for, workers_for
from labrl.spaces import sees_images
from labrl.trial.create import discarding_refused, recording_failure
from labrl.trial.result import TrialResult
from labrl.trial.summary import say

_STOPPED = (INTERRUPTED, TERMINATED)

REMADE = (
    "episodes of this environment depend on earlier ones, so a new one is made for each episode, and what it "
    "keeps between episodes (levels, running statistics) is lost. Instead of a normalizing wrapper, use "
    "transforms/observation=normalize or transforms/reward=normalize. env.fresh_env_per_episode=false keeps "
    "environments, but then resumed runs are not exact"
)
"""Message for a run in which each episode needs a new environment."""


def high_rates(agent: Component) -> dict[str, float]:
    """Return the learning rates of an agent whose largest value exceeds 1, as {key: largest value}.

    Such rates are allowed, because some optimizers and losses need them.
    """
    settings = agent.config if isinstance(agent.config, dict) else vars(agent.config)
    peaks = {
        f"agent.{name}": largest(value)
        for name, value in settings.items()
        if name.rpartition("_")[2] == "lr"
        and isinstance(value, int | Schedule | AdaptiveRate)
        and not isinstance(value, bool)
    }
    return {key: peak for key, peak in peaks.items() if peak > 1}


def ignores_precision(config: TrialConfig) -> bool:
    """Return whether bfloat16 is requested, but has no effect because no network of the agent sees images.

    For agents of users, which may use bfloat16 in their own way, returns False.
    """
    if config.meta.precision != "bf16" or not config.agent.target.startswith("labrl."):
        return False
    has_networks = agent_class(config.agent).modules is not Agent.modules
    return not (has_networks and sees_images(describe(config.env)[0]))


def _inexact(config: TrialConfig, known: Collection[str]) -> dict[str, str]:
    """Return the configuration keys whose values make runs irreproducible, each with a line on the reason.

    known: the keys that the run has recorded before.
    """
    meta, reasons = config.meta, {}
    if meta.distributed:
        reasons["meta.distributed"] = "sessions update weights in no fixed order"
    if meta.async_unroll is not None:
        reasons["meta.async_unroll"] = "the age of the acting weights varies"
    if not meta.deterministic and visible_gpus():
        images = sees_images(describe(config.env)[0])
        on_gpu = learns_faster_on_gpu(config, images)
        compute = Compute.choose(meta.device, meta.precision, 1, num_gpus=meta.num_gpus, faster_on_gpu=on_gpu)
        if compute.device.type == "cuda":
            reasons["meta.deterministic"] = "a GPU adds numbers in no fixed order"
    lines = {key: f"{key}: {why}, so runs are not reproducible" for key, why in reasons.items()}
    if why := UNREPEATABLE.get(backend_class(config.env).repeats(config.env.config)):
        lines["env"] = unrepeatable(why)
    elif "env" in known:
        lines["env"] = unrepeatable("an episode of this run was not the same in a new environment")
    return lines


def train(run: Run) -> TrialResult:
    """Run those sessions of a run that are due, each from its newest checkpoint if it has one, and then make
    the videos and the report.

    Everything that the sessions need is in the run folder. Records the results of all sessions of the trial,
    including sessions that had finished before, in the folder, and returns them. Raises InputError if the
    first step reveals wrong input, and BusyFolderError if another process is training the run.
    """
    with discarding_refused(run), run.lock(), recording_failure(run):
        plain = run.read_config()
        config, info = resolve(plain, plain), run.read_info()
        if info["due"]:
            return _train(run, config, info["due"])
        result = TrialResult(folder=run.path, seed=plain["seed"])
        result.sessions = [SessionResult(**one) for one in info["sessions"]]
        return _make_files(run, config, result)


def _train(run: Run, config: TrialConfig, indices: list[int]) -> TrialResult:
    assert config.seed is not None
    check_machine(config, sees_images(describe(config.env)[0]))
    before = {index: _reached(run.session(index)) for index in indices}
    for index in indices:
        folder = run.session(index)
        for outdated in (folder.result_json, folder.progress_json):
            outdated.unlink(missing_ok=True)
    run.set_status("running")
    if config.meta.distributed:
        forget_shared_weights(run.path)
    inexact = _inexact(config, run.read_info().get("inexact", []))
    for line in inexact.values():
        say(line)
    if backend_class(config.env).repeats(config.env.config) == "if new":
        say(f"env.fresh_env_per_episode: {REMADE}")
        run.update(fresh_env_per_episode=True)
    if masks := backend_class(config.env).describe_masks(config.env.config):
        say(masks)
    for key, rate in high_rates(config.agent).items():
        say(f"{key} reaches {rate:g}: did you intend that? Learning rates above 1 almost never work")
    if used_of_main:
        names = ", ".join(f"{MAIN}.{name}" for name in sorted(used_of_main))
        say(f"only this script or notebook can resume the run, because it defines {names}")
    actions, settings = describe(config.env)[1], config.agent.config
    if isinstance(settings, PolicyConfig) and (remedy := starts_outside(settings, actions)):
        say(
            f"the policy starts with actions of about 0, far outside {actions}, so they are all clipped to a "
            f"bound and little can be learned. {remedy}"
        )
    if ignores_precision(config):
        say(
            "meta.precision=bf16 has no effect: only networks for image observations use it, and this trial "
            "has none"
        )
    if inexact:
        run.update(inexact=list(inexact))
    run.sync()
    done = None
    with shown_on_wandb(config.wandb, run, indices, say):
        if config.meta.max_session == 1:
            if (group := leading()) is not None:
                run.update(ranks=group.ranks.size)
            code, done = run_session(run, 0)
            codes = {0: code}
        else:
            codes = _in_processes(config, run, indices)
        forget_shared_weights(run.path)
        failed = any(code not in (DONE, *_STOPPED) for code in codes.values())
        exit_code = FAILED if failed else max(codes.values())
        result = TrialResult(folder=run.path, seed=config.seed, exit_code=exit_code)
        for index in range(config.meta.max_session):
            result.sessions.append(
                _read_result(config, run, index, codes.get(index, DONE), before.get(index, {}), done)
            )
        sessions = [dataclasses.asdict(session) for session in result.sessions]
        wants_videos = config.meta.videos and result.exit_code in (DONE, FAILED)
        if config.meta.report and not result.stopped_at_start:
            with suppress(OSError):  # of a disk that is read-only
                run.report.unlink()  # so that a kill leaves no outdated report
        run.set_status(_run_status(result), sessions=sessions, videos_due=wants_videos)
        return result if result.stopped_at_start else _make_files(run, config, result)


def _make_files(run: Run, config: TrialConfig, result: TrialResult) -> TrialResult:
    """Make the videos and the report of a run that has ended, and return its result."""
    # Imported late: the first step must not wait for what follows the last one.
    from labrl.trial import reporting
    from labrl.trial.videos import make_videos

    make_videos(run)
    if config.meta.report:
        result.report = reporting.make_report(run.path, config.env)
    if result.error is None and run.errors.lacking:
        result.lacking, result.exit_code = run.errors.summary(run.path), FAILED
    return result


def _in_processes(config: TrialConfig, folder: Run, indices: list[int]) -> dict[int, int]:
    """Run each session in a process of its own, so that the others survive if one dies. Return exit codes by
    session."""
    budget, num_sessions = config.env.config.max_frame, config.meta.max_session
    panel = TrialPanel(folder, num_sessions, budget, enabled=config.meta.progress)
    codes: dict[int, int] = {}
    with Interruption() as interruption, panel, workers_for(len(indices)) as workers:
        running = dict(zip(indices, workers, strict=True))
        for index, worker in running.items():
            worker.run({"folder": str(folder.path), "index": index})
        told = False
        while len(codes) < len(indices):
            wait_for(workers, 0.25)
            for index, worker in running.items():
                if index not in codes and (ended := worker.ended()) is not None:
                    code = ended[0]
                    if -code in SIGNALS:  # before there was anything to save, or after all was saved
                        code = DONE if folder.session(index).ended_well else exit_code_of(-code)
                    codes[index] = 128 - code if code < 0 else code  # as a shell reports it
            panel.update(list(codes))
            stops = interruption.requested and not told
            for worker in workers if interruption.take_save() else ():
                worker.signal(SAVE)
            for worker in workers if stops else ():
                # Workers do not receive a signal to this process alone, or Ctrl-C while they start.
                worker.signal(signal.SIGTERM)
            told = told or stops
    if interruption.requested:
        # The workers received SIGTERM, whichever signal this process received.
        codes = {index: interruption.exit_code if code in _STOPPED else code for index, code in codes.items()}
    return codes


def _reached(folder: RunSession) -> dict[str, Any]:
    """Return the result of a session. If there is none, return the fields of it that `progress.json`
    contains."""
    if result := folder.read_result():
        return result
    if not (shown := read_json(folder.progress_json)):
        return {}
    known = {name: shown.get(name) for name in ("frame", "wall", "return_mean")}
    return {**known, "episodes": shown.get("episode"), **folder.final_values()}


def _read_result(
    config: TrialConfig,
    run: Run,
    index: int,
    code: int,
    before: Mapping[str, Any],
    done: SessionResult | None,
) -> SessionResult:
    """Return the result that a session's process wrote; if it wrote none, build a result from what is known.

    before: fields of the result before the process was started; done: the result of a session that ran in
    this process, which may have been unable to write it.
    """
    assert config.seed is not None
    now = _reached(run.session(index)) if done is None else dataclasses.asdict(done)
    known = {
        "index": index,
        "seed": session_seed(config.seed, index),
        **(now if now.get("frame") else before),
    }
    if done is not None or run.session(index).result_json.exists():
        return SessionResult(**{**known, "status": now["status"], "error": now["error"]})
    if code in _STOPPED:  # before its first step
        return SessionResult(**{**known, "status": "interrupted", "error": None})
    error = f"the process {how_it_ended(128 - code if code > 128 else code)}"
    return SessionResult(**{**known, "status": "failed", "error": error})


def _run_status(result: TrialResult) -> Status:
    if result.exit_code:
        return "failed" if result.exit_code == FAILED else "interrupted"
    return "pruned" if any(session.status == "pruned" for session in result.sessions) else "finished"


def carry_out(order: Mapping[str, Any]) -> tuple[int, str | None]:
    """Train the planned run that `order` names, in a process that does nothing else.

    order: `folder`, the run folder; `cwd`, the working directory; `label`, a prefix for lines of the trial's
    output; `log`, a file in the run folder that receives the output instead, or None; and `full_error`,
    whether to print the traceback of any error. A run that was cut off, for example by the preemption of a
    job, is resumed. Returns the exit code, and the error message if the trial as a whole failed.
    """
    # Imported late: only a worker resumes a run.
    from labrl.trial.past import check_past
    from labrl.trial.resume import FinishedError, resume

    os.chdir(order["cwd"])
    log = None if order["log"] is None else Path(order["folder"], order["log"])
    with printing_to(log), labeled_output("" if log else order["label"]):
        print_warnings()
        try:
            run = Run.open(order["folder"])
            if run.recorded_status != "waiting":
                run.wait_until_free()
                # A planned run has been checked, perhaps on another machine.
                with trusting(Trust(everything=True)):
                    run = resume(check_past(run), [], run.first_provenance["command"])
            return train(run).exit_code, None
        except FinishedError:
            return DONE, None
        except KeyboardInterrupt as stop:  # while the run was restored, or its videos were made
            over = Run.open(order["folder"]).recorded_status in ("finished", "pruned")
            return DONE if over else stop.exit_code if isinstance(stop, Stopped) else INTERRUPTED, None
        except Exception as error:
            answer = answer_to(error)
            if order["full_error"] or (log and (answer is not error or error.__cause__)):
                print_traceback(error, INDENT if log else "")
            return (FAILED, redact(described(error))) if answer is None else (answer.exit_code, str(answer))
