"""A trial: the sessions of one configuration, side by side, each with a seed of its own."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from typing import Any

from labrl.agents.transforms import Transforms
from labrl.config.schema import TrialConfig
from labrl.envs.make import describe
from labrl.lab.devices import threads_per_session
from labrl.lab.result import SessionResult, TrialResult
from labrl.lab.worker import main as session_main
from labrl.lab.worker import run_session
from labrl.networks.compute import Compute
from labrl.networks.spaces import Spaces
from labrl.seeding import draw_seed, session_seed
from labrl.session.callbacks import check_callbacks
from labrl.session.callbacks.progress import TrialPanel
from labrl.session.interruption import Interruption, children_ignore_ctrl_c
from labrl.storage.provenance import write_provenance
from labrl.storage.run_folder import RunFolder, RunStatus


def check(config: TrialConfig) -> None:
    """Refuse what contradicts the environment's spaces or the machine, before any session is built.

    Raises ConfigError.
    """
    Compute.choose(config.meta.device, config.meta.precision, _num_threads(config))
    observation_space, action_space = describe(config.env)
    spaces = Spaces(observation_space, action_space, config.env.config.num_envs)
    agent = config.agent.load()
    if hasattr(agent, "check"):
        agent.check(config.agent.config, spaces)
    Transforms.build(config.transforms, spaces)
    check_callbacks(config)


def run_trial(
    config: TrialConfig, plain: Mapping[str, Any], folder: str | os.PathLike[str], overrides: list[str]
) -> TrialResult:
    """Run all sessions in a new run folder and record what they came to.

    plain: the configuration as it is saved and handed to processes; overrides: what was given on the
    command line. Raises ConfigError for wrong input, before the folder is made.
    """
    check(config)
    run = RunFolder.create(folder)
    seed = draw_seed() if config.seed is None else config.seed
    config, plain = dataclasses.replace(config, seed=seed), {**plain, "seed": seed}
    result = TrialResult(folder=run.path, seed=seed)
    try:
        write_provenance(run, plain, overrides)
        if config.meta.max_session == 1:
            codes = _in_process(config, run, result)
        else:
            codes = _in_processes(config, plain, run, result)
    except BaseException as error:
        run.set_status("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
        raise
    result.exit_code = _trial_exit_code(codes)
    run.set_status(
        _run_status(result.exit_code), sessions=[dataclasses.asdict(session) for session in result.sessions]
    )
    return result


def _num_threads(config: TrialConfig) -> int:
    return threads_per_session(config.meta.num_cpus, config.meta.max_session)


def _in_process(config: TrialConfig, folder: RunFolder, result: TrialResult) -> list[int]:
    session, code = run_session(config, 0, folder.session(0), _num_threads(config))
    result.sessions.append(session)
    return [code]


def _in_processes(
    config: TrialConfig, plain: Mapping[str, Any], folder: RunFolder, result: TrialResult
) -> list[int]:
    """All sessions at once; one that dies leaves the others running."""
    # A forked child would inherit the threads of torch and of ALE in an unusable state.
    context = multiprocessing.get_context("spawn")
    indices = range(config.meta.max_session)
    processes: list[BaseProcess] = [
        context.Process(
            target=session_main, args=(plain, i, folder.path, _num_threads(config)), name=f"session_{i}"
        )
        for i in indices
    ]
    for i in indices:
        folder.session(i)
    panel = TrialPanel(folder, len(processes), config.env.config.max_frame, enabled=config.meta.progress)
    with Interruption() as interruption, panel:
        try:
            with children_ignore_ctrl_c():
                for process in processes:
                    process.start()
            told = False
            while any(process.is_alive() for process in processes):
                for process in processes:
                    process.join(0.25 / len(processes))
                panel.update([i for i in indices if not processes[i].is_alive()])
                if interruption.requested and not told:
                    # A kill of this process alone, or Ctrl-C while they start, does not reach them by itself.
                    told = True
                    _terminate(processes)
        except BaseException:
            _terminate(processes)  # nobody is left who would watch over them
            raise
    codes = [_exit_code(process) for process in processes]
    if interruption.requested:
        # They were told by SIGTERM, whatever this process was told by.
        codes = [interruption.exit_code if code in (130, 143) else code for code in codes]
    for i, code in zip(indices, codes, strict=True):
        result.sessions.append(_read_result(config, folder, i, code))
    return codes


def _terminate(processes: list[BaseProcess]) -> None:
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.terminate()


def _exit_code(process: BaseProcess) -> int:
    """Of a finished process, as a shell would tell it."""
    code = process.exitcode if process.exitcode is not None else 1
    return 128 - code if code < 0 else code


def _read_result(config: TrialConfig, folder: RunFolder, index: int, code: int) -> SessionResult:
    """What the session's process wrote, or what can be said of one that wrote nothing."""
    assert config.seed is not None
    path = folder.session(index).result
    if path.exists():
        return SessionResult(**json.loads(path.read_text()))
    result = SessionResult(index=index, seed=session_seed(config.seed, index), status="failed")
    if code in (130, 143):
        result.status = "interrupted"  # before its first step
    else:
        result.error = f"the process ended with code {code} and without a result"
    return result


def _trial_exit_code(codes: list[int]) -> int:
    """0 when all finished; 130 or 143 when a signal ended some and none failed; else 1."""
    failed = [code for code in codes if code not in (0, 130, 143)]
    return 1 if failed else max(codes)


def _run_status(exit_code: int) -> RunStatus:
    if exit_code == 0:
        return "finished"
    return "failed" if exit_code == 1 else "interrupted"
