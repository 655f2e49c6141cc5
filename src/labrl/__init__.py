"""labrl: a laboratory for deep reinforcement learning."""

from __future__ import annotations

TYPE_CHECKING = False  # the commands load this before they handle Ctrl-C, and typing takes long to import
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from labrl.trial.result import TrialError, TrialResult

__all__ = ["TrialError", "TrialResult", "train"]


def __getattr__(name: str) -> object:
    """Import the classes of `__all__` when they are first used."""
    if name in ("TrialError", "TrialResult"):
        from labrl.trial import result

        return vars(result)[name]
    raise AttributeError(f"module 'labrl' has no attribute {name!r}")


def train(
    overrides: Sequence[str] = (),
    config_dir: str | os.PathLike[str] | None = None,
    *,
    raise_on_failure: bool = False,
) -> TrialResult:
    """Run one trial, as `labrl <overrides>` does, and return what it handed back.

        result = labrl.train(["env=cartpole", "agent=ppo", "seed=7"])
        result.folder, result.exit_code

    `+resume=...` and `+rerun=...` go back to a run as they do there. config_dir: a folder with
    configuration groups of your own, as --config-dir. raise_on_failure: raise a `labrl.TrialError`, which has
    the result as `result`, where a session fails or is interrupted; otherwise what failed is printed, and
    stands in `result.error`. Raises `labrl.errors.InputError` for wrong input, before anything is
    written.
    """
    import json

    from labrl.config.compose import compose, resolve, to_plain
    from labrl.config.presets import choices_of
    from labrl.errors import InputError
    from labrl.processes import let_threads_sleep, name_user_and_home
    from labrl.script import begin

    begin("labrl.train")
    let_threads_sleep()
    name_user_and_home()
    if isinstance(overrides, str) or not all(isinstance(word, str) for word in overrides):
        raise InputError(
            f"labrl.train takes a list of overrides, such as ['env=pong', 'seed=7'], got {overrides!r}",
            code="usage",
            key="labrl.train",
        )
    from labrl.trial.resume import Again
    from labrl.trial.showing import enjoy_request
    from labrl.trial.torchrun import refuse_torchrun

    refuse_torchrun("labrl.train")
    words = list(overrides)
    if enjoy_request(words) is not None:
        raise InputError(
            "+enjoy trains nothing: call labrl.cli.main([...]) with the same words",
            code="usage",
            key="+enjoy",
        )
    again = Again.asked_for(words, config_dir=config_dir)
    if again is not None:
        words, config_dir = again.words, config_dir or again.config_dir
    cfg = compose(words, config_dir, with_hydra=True)
    plain = to_plain(cfg)
    config = resolve(plain, cfg)
    # Imported late: help and completion must not wait for torch.
    from labrl.trial.fork_server import start_session_server

    start_session_server(plain)
    from labrl.storage.provenance import Command
    from labrl.trial.result import TrialError
    from labrl.trial.summary import print_failures
    from labrl.trial.trial import run_trial

    typed = f"labrl.train({json.dumps(list(overrides))})"
    command = Command.of(words, choices_of(cfg.hydra), config_dir, typed)
    folder = cfg.hydra.run.dir
    if again is not None:
        result = again.run(cfg, config, plain, folder, command)
    else:
        result = run_trial(config, plain, folder, command)
    if result.exit_code and raise_on_failure:
        raise TrialError(result)
    print_failures(result)
    return result
