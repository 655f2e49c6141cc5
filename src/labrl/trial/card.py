"""`labrl-export --card`: write a policy and its description to a folder, for the Hugging Face hub."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from labrl.analysis.figures import save_sheets
from labrl.analysis.formats import brackets_by_width, method_of
from labrl.analysis.report.trial import command_again, session_rows, trial_report
from labrl.analysis.returns import MEANING
from labrl.analysis.statistics import final_return, trial_statistics
from labrl.analysis.tables import markdown_lines
from labrl.errors import InputError
from labrl.processes.secrets import redact
from labrl.run.atomic import write_atomic
from labrl.run.card import CONFIG, check_installed, is_card, write_card_files
from labrl.run.run import Run
from labrl.run.trust import foreign_names
from labrl.session.acting import acting_state
from labrl.trial.loading import load

PACKAGES = ("labrl", "torch", "gymnasium", "ale-py", "mujoco", "numpy")
"""Packages whose versions the card lists."""

CURVE, VIDEO = "curve.png", "replay.mp4"
"""File names of the learning curve and the video. The hub shows a video with this name at the top of the
page."""


def write_card(
    which: str, folder: Path, session: int | None = None, checkpoint: str = "best", licence: str = "other"
) -> Path:
    """Write the policy of a run and files that describe it to `folder`. Return the path of `README.md`.

    session: index of the session; None: the session with the highest evaluation score. Raises InputError if
    there is no such policy, or if the folder contains other files or cannot be written.
    """
    check_installed("--card")
    if folder.exists() and not is_card(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError.usage("--card", f"{folder} has other files", "Choose a new or an empty folder")
    policy = load(which, session, checkpoint, "fp32", "export")
    run = Run.open(policy.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        packages = run.provenance.get("packages", {})
        config = {**policy.config, "wandb": {**policy.config.get("wandb", {}), "entity": None}}
        facts = {
            "library": "labrl",
            "agent": run.agent,
            "env": run.env,
            "session": policy.session,
            "frame": policy.frame,
            "seed": policy.seed,
            "packages": {
                "python": run.provenance.get("python", {}).get("version", ""),
                **{name: packages[name] for name in PACKAGES if name in packages},
            },
            "config": redact(config),
        }
        write_card_files(folder, acting_state(policy.agent, policy.transforms, policy.clock), facts)
        statistics = trial_statistics(run)
        content, sheets = trial_report(run, statistics)
        save_sheets([sheets[0]._replace(name=Path(CURVE).stem, size=(5, None))], folder, ["png"])
        if (video := run.session(policy.session).best_video).exists():
            shutil.copyfile(video, folder / VIDEO)
        text = _text(run, facts, statistics, content["verdict"], folder, licence)
        write_atomic(folder / "README.md", text)
    except OSError as error:
        why = f"{folder} cannot be written ({error.strerror or error})"
        raise InputError.usage("--card", why, "Choose another folder") from error
    finally:
        policy.close()
    return folder / "README.md"


def _text(
    run: Run,
    facts: Mapping[str, Any],
    statistics: Mapping[str, Any],
    verdict: str,
    folder: Path,
    licence: str,
) -> str:
    """Return the content of `README.md`: metadata that the hub reads, then the page."""
    env = str(run.config["env"].get("id") or run.env)
    final = final_return(statistics)
    metrics = []
    if final is not None:
        method = f", 95 % interval ({method_of(final.seeds)})" if final.low is not None else ""
        seeds = f"{final.seeds} seed{'' if final.seeds == 1 else 's'}"
        value = brackets_by_width(final.value, final.low, final.high)
        name = f"final return, {final.statistic} of {seeds}{method}"
        metrics = [{"type": "mean_reward", "name": name, "value": value, "verified": False}]
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env, "type": env},
        "metrics": metrics,
    }
    head = {
        "library_name": "labrl",
        "license": licence,
        "tags": ["deep-reinforcement-learning", "reinforcement-learning", "labrl", run.agent, env],
        "model-index": [{"name": f"{run.agent} on {env}", "results": [result]}],
    }
    git = run.provenance.get("git", {}).get("labrl") or {}
    commit = f"labrl's commit {git['commit']}" + " with changes" * bool(git.get("dirty")) if git else ""
    versions = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    head_of_code, trust, note = "import labrl\n", "", []
    if foreign := ", ".join(foreign_names(facts["config"])):
        place = Path(run.config_dir).name if run.config_dir else "<folder>"
        head_of_code = "import sys\n\nimport labrl\n\n"
        head_of_code += f'sys.path.append("{place}")  # the folder that defines {foreign}\n'
        trust = ", trust=True"
        note = ["The policy needs code that is not part of labrl, and `trust=True` lets labrl import it."]
    parts = [
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---",
        f"# {run.agent} on {env}",
        f"A policy trained with labrl, at frame {facts['frame']:,} of session {facts['session']}. {verdict}",
        f"![Return over frames]({CURVE})",
        f"## Use\n\n```python\n{head_of_code}\n"
        f'policy = labrl.load("{folder.name}"{trust})  # the folder with these files\n'
        "print(policy.evaluate(episodes=10).return_mean)\n```",
        *note,
        f"To download the policy: `hf download <user>/{folder.name} --local-dir {folder.name}`",
        f"## Training\n\n```sh\n{command_again(run, elsewhere=True) or 'not recorded'}\n```",
        markdown_lines(session_rows(statistics), texts=3).rstrip(),
        "labrl derives the seed of a session from the `seed` of the command, which thus trains the same "
        f"sessions. {MEANING.capitalize()}. The weights are those of session {facts['session']} at frame "
        f"{facts['frame']:,}; `{CONFIG}` has the complete configuration.",
        f"Versions: {'; '.join(filter(None, [versions, commit]))}.",
    ]
    return "\n\n".join(parts) + "\n"
