"""The configuration of a trial. Each component's own options lie beside the component.

The values are in `configs/`: no field here has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from labrl.config.component import Component
from labrl.config.keys import Continues, Scores, Traits, Watches
from labrl.config.types import (
    Early,
    Frequency,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    RowFrequency,
    frames_between,
)
from labrl.dashboards.options import WandbConfig
from labrl.experiment.search.options import SearchConfig
from labrl.session.options import AsyncUnrollConfig, ProfileConfig, StartFromConfig


@dataclass(kw_only=True)
class MetaConfig:
    """Options of how a trial is run, as opposed to what is learned.

    Exceptions: `precision`, `compile` and `kernels` change last digits, `distributed` and `async_unroll`
    change which weights act, and `episode_window` changes the meaning of some columns.
    """

    distributed: Literal[False, "shared", "synced"]
    """Whether sessions train the same weights without a lock (Hogwild): shared, in the same memory; synced,
    each in its own and exchanged after each update; false: each session learns by itself."""
    async_unroll: AsyncUnrollConfig | None
    """Acting in a process beside the learner, for agents with a replay buffer; null: the session acts itself.
    With it, no two runs are equal."""
    rigorous_eval: Scores[NonNegativeInt | None]
    """Separate environments that are played at each evaluation, >= 0; null or 0: scores come from the
    training episodes."""
    eval_episodes: Scores[PositiveInt]
    """Episodes of each evaluation environment, >= 1: the same number, however long they are."""
    eval_greedy: Scores[bool]
    """Whether evaluation episodes are played with the best actions; false: as the policy chooses in
    evaluation."""
    eval_epsilon: Scores[Probability]
    """Probability of a random action in each step of an evaluation, in [0, 1], for any agent."""
    async_eval: Annotated[bool, Traits(resume=True, same_group=True)]
    """Whether evaluation runs in a process beside training, with the weights of its frame: training waits
    only if the previous evaluation is still running, and at the end."""
    eval_frequency: Scores[Frequency]
    """Frames between evaluation checkpoints, >= 1; or their share of `env.max_frame`: "1/20"."""
    log_frequency: Continues[RowFrequency]
    """Frames between training checkpoints, >= 1; or their share of `env.max_frame`.

    `early:10000`: rows also come at the beginning, each after an eighth of the frames so far, so that every
    run has at least ten; ranks, which write rows together, leave these out. Checkpoints come every 10,000.
    """
    max_opt_step: Scores[PositiveInt | None]
    """Optimizer updates after which a session ends before `env.max_frame`, >= 1; null: any number.

    Updates that belong to one rollout or one step are all made, so that the run can go on exactly: with 32
    of each rollout, 100 ends at 128.
    """
    max_wall: Scores[PositiveFloat | None]
    """Seconds of training after which a session ends before `env.max_frame`, > 0; null: any number."""
    stop_at_return: Scores[float | None]
    """Mean return of an evaluation that ends a session as finished before `env.max_frame`; null: none."""
    patience: Scores[PositiveInt | None]
    """Evaluations in a row without a new best mean return that end a session as finished, >= 1; null: any
    number. Those before the first finished episode do not count."""
    max_session: Annotated[PositiveInt, Traits(resume=True, same_group=True)]
    """Sessions of the trial, which differ only in the seed, >= 1."""
    max_trial: Annotated[PositiveInt | None, Traits(resume=True, same_group=True)]
    """Trials of a search in total, >= 1; null: 20."""
    episode_window: PositiveInt
    """Finished episodes over which returns and lengths are averaged, >= 1."""
    keep_last: Watches[PositiveInt]
    """Latest checkpoints kept besides the best, >= 1."""
    keep_every: Watches[Frequency | None]
    """Frames between checkpoints that are kept for ever, to fork from or to play, >= 1; or their share of
    `env.max_frame`: "1/4"; null: none. Each has a copy of a replay buffer that lies in files."""
    num_cpus: Continues[PositiveFloat | None]
    """Cores for the whole trial, > 0; null: all that the process may use."""
    num_gpus: Continues[NonNegativeFloat | None]
    """GPUs for the whole trial, >= 0, of which trials side by side may share one: 0.5; null: all, or in an
    experiment one that is shared with whoever is there."""
    device: Continues[Literal["auto", "cpu", "cuda"]]
    """Device of the networks; auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"]
    """Precision of networks that see images; auto: bf16 where the processor is fast at it."""
    compile: bool
    """Whether torch.compile makes the code of the networks: faster on GPUs, after up to minutes of compiling.
    It changes the last bits of what they compute."""
    kernels: Literal["auto", "torch"]
    """Gradients of fully connected networks on the CPU: auto, by kernels without autograd where network and
    loss have one, several times as fast; torch, by autograd. The two differ in the last bits."""
    on_crash: Watches[Literal["skip", "save"]]
    """Whether a session that fails also saves the state in which it did, in its folder `crash`."""
    profile: Watches[ProfileConfig | None]
    """Frames that are profiled, such as {start: 10000, frames: 2048}; null: none."""
    record_episodes: Watches[Literal["none", "best_last", "each"]]
    """Episodes that are recorded as seed and actions: best_last, the best and the latest of those that scores
    are of, a few KB; each: also the latest at every evaluation."""
    videos: Watches[bool]
    """Whether the recorded best and latest episode of the best session become videos at the end."""
    log: Watches[Literal["scalars", "norms", "histograms"]]
    """Metrics besides scalars: norms, those of each weight and its gradient, as columns; histograms, also
    TensorBoard's of weights, gradients, outputs of layers, actions and their policy."""
    gradient_noise: Watches[bool]
    """Whether the noise scale of gradients is measured, a column `noise_scale`; it costs some percent."""
    tensorboard: Watches[bool]
    """Whether metrics are also written for TensorBoard."""
    progress: Watches[bool]
    """Whether a running trial shows a live panel, or lines where there is no terminal."""
    report: Watches[bool]
    """Whether statistics, plots and a report are made when the trial has ended. The trials of a search make
    none unless this is typed as true; the search has its own."""

    def __post_init__(self) -> None:
        if self.async_unroll is not None and self.distributed:
            raise ValueError(
                "async_unroll gives each session an actor with weights of its own, and meta.distributed="
                f"{self.distributed} lets sessions train the same weights: set meta/async_unroll=none or "
                "meta.distributed=false"
            )
        if self.log == "histograms" and not self.tensorboard:
            raise ValueError(
                "log=histograms needs TensorBoard, which meta.tensorboard=false switches off: set "
                "meta.tensorboard=true or meta.log=norms"
            )
        separate = {
            "eval_episodes": self.eval_episodes > 1,
            "eval_greedy": self.eval_greedy,
            "eval_epsilon": self.eval_epsilon > 0,
            "async_eval": self.async_eval,
        }
        if any(separate.values()) and not self.rigorous_eval:
            name = next(name for name, is_set in separate.items() if is_set)
            raise ValueError(
                f"{name} is for separate environments, and meta.rigorous_eval=null or 0 evaluates on the "
                f"training episodes: set meta.rigorous_eval=<number>, or leave meta.{name} out"
            )


@dataclass(kw_only=True)
class EnvironmentConfig:
    """The keys that every environment has."""

    name: str
    """Name of the environment in folder names and tables."""
    num_envs: PositiveInt
    """Environments that are stepped together, >= 1."""
    max_frame: Scores[PositiveInt]
    """Budget of a session, frames (agent steps summed over the environments), >= 1. Schedules end at a
    horizon of their own, so that a resume may change it."""


@dataclass(kw_only=True)
class TrialConfig:
    """One trial: an agent in an environment, and how it is run."""

    agent: Component
    """The agent."""
    env: Annotated[Component, EnvironmentConfig]
    """The environment."""
    meta: MetaConfig
    """Options of how the trial is run."""
    wandb: Watches[WandbConfig]
    """Whether and how it is shown on Weights & Biases."""
    search: Watches[SearchConfig]
    """Options of a search; a single trial ignores them."""
    transforms: dict[str, Component | None]
    """The learner's view of observations and rewards, applied in order; null: off."""
    start_from: StartFromConfig
    """The run whose weights the agent begins with."""
    callbacks: Watches[dict[str, Component | None]]
    """A user's own callbacks by name; null: off."""
    seed: Annotated[NonNegativeInt | None, Traits(same_group=True)]
    """Seed of the trial, >= 0; null: drawn and recorded."""

    @property
    def eval_frames(self) -> int:
        """Frames between evaluation checkpoints."""
        return frames_between(self.meta.eval_frequency, self.env.config.max_frame)

    @property
    def keep_frames(self) -> int | None:
        """Frames between checkpoints that are kept for ever, None where none is."""
        frequency = self.meta.keep_every
        return None if frequency is None else frames_between(frequency, self.env.config.max_frame)

    @property
    def log_frames(self) -> int:
        """Frames between training checkpoints."""
        return frames_between(self.meta.log_frequency, self.env.config.max_frame)

    @property
    def early_rows(self) -> bool:
        """Whether training rows come sooner at the beginning."""
        return isinstance(self.meta.log_frequency, Early)
