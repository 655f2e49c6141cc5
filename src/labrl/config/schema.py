"""What a whole trial consists of. Each component's own options lie beside the component.

The values are in `configs/`: no field here has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from labrl.config.component import Component
from labrl.config.keys import Continues, Scores, Traits, Watches
from labrl.config.types import (
    Frequency,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    frames_between,
)
from labrl.dashboards.options import WandbConfig
from labrl.errors import InputError
from labrl.experiment.search.options import SearchConfig
from labrl.session.options import AsyncUnrollConfig, ProfileConfig


@dataclass(kw_only=True)
class MetaConfig:
    """How a trial is run, not what is learned.

    But `precision`, `compile` and `kernels` change last digits, `distributed` and `async_unroll` which
    weights act, and `episode_window` what a column of the tables means.
    """

    distributed: Literal[False, "shared", "synced"]
    """Whether sessions train the same weights without a lock (Hogwild): shared, in the same memory; synced,
    each in its own and exchanged after each update; false: each session learns by itself."""
    async_unroll: AsyncUnrollConfig | None
    """How a process beside the learner acts, for agents that learn from a replay buffer; null: the session
    acts itself. With it no two runs are equal."""
    rigorous_eval: Scores[NonNegativeInt | None]
    """Separate environments that are played at each evaluation, >= 0; null or 0: scores come from the
    training episodes."""
    eval_episodes: Scores[PositiveInt]
    """Episodes of each of these environments, >= 1: the same number, however long they are."""
    eval_greedy: Scores[bool]
    """Whether they are played with the best actions; false: as the agent's policy chooses in evaluation."""
    eval_epsilon: Scores[Probability]
    """Probability of a random action in each of their steps, in [0, 1], of any agent."""
    async_eval: Annotated[bool, Traits(resume=True, same_group=True)]
    """Whether they are played in a process beside training, by the weights of their frame: training waits
    only where the evaluation before is still under way, and at the end."""
    eval_frequency: Scores[Frequency]
    """Frames between evaluation checkpoints, >= 1; or their share of `env.max_frame`: "1/20"."""
    log_frequency: Continues[Frequency]
    """Frames between training checkpoints, >= 1; or their share of `env.max_frame`."""
    max_opt_step: Scores[PositiveInt | None]
    """Optimizer updates after which a session ends before `env.max_frame`, >= 1; null: any number.

    Updates that belong to one rollout or one step are all made, so that the run can go on exactly: with 32
    of each rollout, 100 ends at 128.
    """
    max_wall: Scores[PositiveFloat | None]
    """Seconds of training after which a session ends before `env.max_frame`, > 0; null: any number."""
    max_session: Annotated[PositiveInt, Traits(resume=True, same_group=True)]
    """Sessions of the trial, which differ only in the seed, >= 1."""
    max_trial: Annotated[PositiveInt | None, Traits(resume=True, same_group=True)]
    """Trials of a search in total, >= 1; null: 20."""
    episode_window: PositiveInt
    """Finished episodes over which returns and lengths are averaged, >= 1."""
    keep_last: Watches[PositiveInt]
    """Latest checkpoints kept besides the best, >= 1."""
    num_cpus: Continues[PositiveFloat | None]
    """Cores for the whole trial, > 0; null: all that the process may use."""
    num_gpus: Continues[NonNegativeFloat | None]
    """GPUs for the whole trial, >= 0, of which trials side by side may share one: 0.5; null: all, or in an
    experiment one that is shared with whoever is there."""
    device: Continues[Literal["auto", "cpu", "cuda"]]
    """Where networks live; auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"]
    """Of the arithmetic of networks that see images; auto: bf16 where the processor is fast at it."""
    compile: bool
    """Whether torch.compile makes the code of the networks: faster on GPUs, after up to minutes of compiling.
    It changes the last bits of what they compute."""
    kernels: Literal["auto", "torch"]
    """How fully connected networks learn on the CPU: auto, by kernels without autograd where network and loss
    have one, several times as fast; torch, by autograd. It changes the last bits of what they compute."""
    on_crash: Watches[Literal["skip", "save"]]
    """Whether a session that fails also saves the state in which it did, in its folder `crash`."""
    profile: Watches[ProfileConfig | None]
    """Which frames are profiled, call by call, such as {start: 10000, frames: 2048}; null: none."""
    record_episodes: Watches[Literal["none", "best_last", "each"]]
    """Which episodes are kept as seed and actions: the best and the latest of those that evaluation is made
    of, a few KB; each: also the latest at every evaluation."""
    videos: Watches[bool]
    """Whether the recorded best and latest episode of the best session become videos at the end."""
    log: Watches[Literal["scalars", "norms", "histograms"]]
    """What is recorded besides scalars: norms, those of each weight and its gradient, as columns; histograms,
    also TensorBoard's of weights, gradients, outputs of layers, actions and their policy."""
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
            raise InputError(
                "meta.async_unroll gives each session an actor with weights of its own, and meta.distributed="
                f"{self.distributed} lets sessions train the same weights: set meta/async_unroll=none or "
                "meta.distributed=false",
                code="contradiction",
                key="meta.async_unroll",
            )
        if self.log == "histograms" and not self.tensorboard:
            raise InputError(
                "meta.log=histograms needs TensorBoard, which meta.tensorboard=false switches off: set "
                "meta.tensorboard=true or meta.log=norms",
                code="contradiction",
                key="meta.log",
            )
        needing = {
            "eval_episodes": self.eval_episodes > 1,
            "eval_greedy": self.eval_greedy,
            "eval_epsilon": self.eval_epsilon > 0,
            "async_eval": self.async_eval,
        }
        name = next((name for name, needed in needing.items() if needed), None)
        if name is not None and not self.rigorous_eval:
            value = str(getattr(self, name)).lower()
            raise InputError(
                f"meta.{name}={value} needs separate environments for evaluation, and meta.rigorous_eval is "
                f"{'null' if self.rigorous_eval is None else 0}: set meta.rigorous_eval=<number>, or leave "
                f"meta.{name} out",
                code="contradiction",
                key=f"meta.{name}",
            )


@dataclass(kw_only=True)
class EnvironmentConfig:
    """The keys that every environment has."""

    name: str
    """What the run is called by, in folder names and tables."""
    num_envs: PositiveInt
    """Environments that are stepped together, >= 1."""
    max_frame: Scores[PositiveInt]
    """Budget of a session, frames (agent steps summed over the environments), >= 1. Schedules end at a
    horizon of their own, so that a resume may change it."""


@dataclass(kw_only=True)
class TrialConfig:
    """One trial: an agent in an environment, and how it is run."""

    agent: Component
    """Who learns."""
    env: Annotated[Component, EnvironmentConfig]
    """Where."""
    meta: MetaConfig
    """How the trial is run."""
    wandb: Watches[WandbConfig]
    """Whether and how it is shown on Weights & Biases."""
    search: Watches[SearchConfig]
    """How an experiment looks for better values; a single trial takes no notice of it."""
    transforms: dict[str, Component | None]
    """The learner's view of observations and rewards, applied in order; null: off."""
    callbacks: Watches[dict[str, Component | None]]
    """A user's own callbacks by name; null: off."""
    seed: Annotated[NonNegativeInt | None, Traits(same_group=True)]
    """Of the trial, >= 0; null: drawn and recorded."""

    @property
    def eval_frames(self) -> int:
        """Frames between evaluation checkpoints."""
        return frames_between(self.meta.eval_frequency, self.env.config.max_frame)

    @property
    def log_frames(self) -> int:
        """Frames between training checkpoints."""
        return frames_between(self.meta.log_frequency, self.env.config.max_frame)
