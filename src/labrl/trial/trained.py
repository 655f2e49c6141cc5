"""The agent of an earlier run, loaded from a checkpoint."""

from __future__ import annotations

import os
from typing import Literal, Self

from labrl.config.compose import find_modules, resolve
from labrl.envs.make import describe, gives_masks
from labrl.errors import InputError, key_in
from labrl.learning.compute import Compute
from labrl.run.checkpoint import loading
from labrl.run.run import Run
from labrl.seeding import session_seed
from labrl.session.acting import ActingCopy
from labrl.spaces import Spaces, sees_images
from labrl.trial.command import frame_of
from labrl.trial.find import Verb, find_run, option_of
from labrl.trial.past import check_past

Precision = Literal["auto", "fp32", "bf16"]


class TrainedAgent:
    """The agent of one session, with its transforms, at a checkpoint.

    Loading changes no files of the run, so the run may still be in progress.
    """

    def __init__(
        self,
        past: Run,
        session: int | None,
        checkpoint: str,
        verb: Verb = "load",
        precision: Precision | None = None,
        num_threads: int = 1,
    ) -> None:
        """Load the agent of the run `past`, whose modules must be importable.

        session: index of the session; None: the session with the highest evaluation score; checkpoint: best,
        latest, default or a frame; verb: the purpose, for messages; precision: precision of the networks;
        None: the precision of the run; num_threads: number of cores to use. Raises InputError if there is no
        such checkpoint, or if it does not fit the configuration.
        """
        self.config = past.read_config()
        """The resolved configuration of the run as plain data, for example `config["agent"]["lr"]`."""
        self.trial = resolve(self.config)
        """The resolved configuration of the run, as typed dataclasses."""
        chosen = past.choose_session(session, option_of(verb, "session"))
        found, self.checkpoint = chosen.choose_checkpoint(checkpoint, option_of(verb, "checkpoint"))
        """Kind of the loaded checkpoint: `best`, `latest`, or `chosen` if it was requested by its frame."""
        assert self.trial.seed is not None
        self.folder = past.path
        """The run folder."""
        self.session = chosen.index
        """Index of the session."""
        self.frame = found.frame
        """Number of frames that the session had played when the checkpoint was written."""
        self.file = found.path.name
        """Name of the folder of the loaded checkpoint."""
        self.checksum = found.checksum
        """SHA-256 of the file with the checkpoint's state."""
        self.seed = session_seed(self.trial.seed, self.session)
        """Seed of the session's random streams."""
        # If several ranks train a session, its checkpoint contains the agent of the first rank.
        ranks = 1 + len(found.state.get("ranks", []))
        env = self.trial.env
        self.observation_space, self.action_space = describe(env)
        num_envs = env.config.num_envs // ranks
        self.spaces = Spaces(self.observation_space, self.action_space, num_envs, gives_masks(env))
        """Spaces for which the agent is built; the observation space is a single array or a flat Dict."""
        precision = precision or self.trial.meta.precision
        images = sees_images(self.observation_space)
        compute = Compute.choose("auto", precision, num_threads, faster_on_gpu=images)
        copy = ActingCopy(self.trial, self.spaces, self.seed, compute, ranks)
        self.agent, self.transforms, self.clock = copy.agent, copy.transforms, copy.clock
        try:
            with loading(str(found.path)):
                self.clock.load_state_dict(found.state["clock"])
                self.transforms.load_state_dict(found.state["transforms"])
                self.agent.load_state_dict(found.state["agent"])
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(
        cls,
        run: str | os.PathLike[str],
        session: int | None = 0,
        checkpoint: str | int = "best",
        precision: Precision | None = None,
        verb: Verb = "load",
    ) -> Self:
        """Load the agent of a run that a user has named, and make the user's own modules importable.

        run: a run folder, a pattern or `latest`. The other arguments are those of the constructor. Raises
        InputError if there is no such run, session or checkpoint.
        """
        past = check_past(find_run(os.fspath(run), [], verb))
        find_modules(past.config_dir)
        wanted = checkpoint if checkpoint in ("best", "latest") else frame_of(checkpoint)
        if wanted is None:
            key = key_in(option_of(verb, "checkpoint"))
            raise InputError.value(key, checkpoint, "be best, latest or the frame of a checkpoint")
        return cls(past, session, str(wanted), verb, precision)

    def close(self) -> None:
        """Stop the threads of the agent."""
        self.agent.close()
