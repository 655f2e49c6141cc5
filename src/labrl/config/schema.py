"""What a whole trial consists of. Each component's own options lie beside the component."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator

from labrl.config.component import Component
from labrl.config.search import SearchConfig
from labrl.config.types import (
    Frequency,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    frames_between,
)


def _short(longest: int, forbidden: str = "") -> AfterValidator:
    """What W&B takes for a name; refused here, because W&B would refuse it in the middle of a run."""

    def check(text: str) -> str:
        if not 1 <= len(text) <= longest or any(sign in text for sign in forbidden):
            without = f", none of {' '.join(forbidden)}" if forbidden else ""
            raise ValueError(f"must be 1 to {longest} characters{without}")
        return text

    return AfterValidator(check)


Name = Annotated[str, _short(128)]
Project = Annotated[str, _short(128, forbidden="/\\#?%:")]
Tag = Annotated[str, _short(64)]


@dataclass(kw_only=True)
class ProfileConfig:
    """A window of training that is watched closely."""

    start: NonNegativeInt = 0
    """Frame at which it begins, >= 0."""
    frames: PositiveInt = 1000
    """Frames that it lasts, >= 1: a few updates are enough, and each makes a trace longer."""


@dataclass(kw_only=True)
class AsyncUnrollConfig:
    """One process that acts ahead of the learner."""

    queue_size: PositiveInt = 8
    """Vector steps that it may be ahead, >= 1: with more, the weights that act are older."""
    update_period: PositiveInt = 10
    """Optimizer updates from one publication of the weights to the next, >= 1."""
    step_interval: NonNegativeFloat = 0
    """Seconds from one vector step to the next at least, for what runs in real time, >= 0."""
    timeout: PositiveFloat = 60
    """Seconds of silence after which it counts as hanging, > 0."""

    def __post_init__(self) -> None:
        if self.timeout <= self.step_interval:
            raise ValueError(
                f"timeout={self.timeout:g} must be more than step_interval={self.step_interval:g}, or an "
                "actor that keeps its pace counts as hanging"
            )


@dataclass(kw_only=True)
class MetaConfig:
    """How a trial is run, not what is learned.

    But `precision` and `compile` change last digits, `distributed` and `async_unroll` which weights act.
    """

    distributed: Literal[False, "shared", "synced"] = False
    """Whether sessions train the same weights without a lock (Hogwild): shared, in the same memory; synced,
    each in its own and exchanged after each update; false: each session learns by itself."""
    replica_check_frequency: Frequency = 10_000
    """Frames between comparisons of the weights that the ranks of torchrun have, >= 1; or their share of
    `env.max_frame`. A difference ends the run."""
    async_unroll: AsyncUnrollConfig | None = None
    """How a process beside the learner acts, for agents that learn from a replay memory; null: it acts
    itself. No two runs are equal with it."""
    rigorous_eval: NonNegativeInt | None = None
    """Separate environments that are played at each evaluation, >= 0; null or 0: scores come from the
    training episodes."""
    eval_episodes: PositiveInt = 1
    """Episodes of each of these environments, >= 1: the same number, however long they are."""
    eval_greedy: bool = False
    """Whether they are played with the best actions; false: as the agent's policy chooses in evaluation."""
    eval_epsilon: Probability = 0.0
    """Probability of a random action in each of their steps, in [0, 1], of any agent."""
    async_eval: bool = False
    """Whether they are played in a process beside training, by the weights of their frame: training waits
    only where the evaluation before is still under way, and at the end."""
    eval_frequency: Frequency = 10_000
    """Frames between evaluation checkpoints, >= 1; or their share of `env.max_frame`: "1/20"."""
    log_frequency: Frequency = 10_000
    """Frames between training checkpoints, >= 1; or their share of `env.max_frame`."""
    max_opt_step: PositiveInt | None = None
    """Optimizer updates after which a session ends, if `env.max_frame` does not end it first; null: any.

    Updates that belong to one rollout or one step are all made, so that the run can go on exactly: with 32
    of each rollout, 100 ends at 128.
    """
    max_wall: PositiveFloat | None = None
    """Seconds of training after which a session ends, > 0; null: any."""
    max_session: PositiveInt = 1
    """Sessions of the trial, which differ only in the seed, >= 1."""
    max_trial: PositiveInt | None = None
    """Trials of a search in total, >= 1; null: 20."""
    episode_window: PositiveInt = 100
    """Finished episodes over which returns and lengths are averaged, >= 1."""
    keep_last: PositiveInt = 2
    """Latest checkpoints kept besides the best, >= 1."""
    num_cpus: PositiveFloat | None = None
    """Cores for the whole trial, > 0; null: all that the process may use."""
    num_gpus: NonNegativeFloat | None = None
    """GPUs for the whole trial, >= 0, of which trials side by side may share one: 0.5; null: all, or in an
    experiment one that is shared with whoever is there."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks live; auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the arithmetic of networks that see images; auto: bf16 where the processor is fast at it."""
    compile: bool = False
    """Whether torch.compile makes the code of the networks: it takes up to minutes at the beginning, and
    changes the last bits of what they compute."""
    on_crash: Literal["skip", "save"] = "skip"
    """Whether a session that fails also saves the state in which it did, in its folder `crash`."""
    profile: ProfileConfig | None = None
    """Which frames are profiled, call by call; null: none."""
    record_episodes: Literal["none", "best_last", "each"] = "best_last"
    """Which episodes are kept as seed and actions: the best and the latest of those that evaluation is made
    of, a few KB; each: also the latest at every evaluation."""
    videos: bool = True
    """Whether the recorded best and latest episode of the best session become videos at the end."""
    log: Literal["scalars", "norms", "histograms"] = "scalars"
    """What is looked at besides scalars: norms, those of each weight and its gradient, as columns;
    histograms, also TensorBoard's of weights, gradients, outputs of layers, actions and their policy."""
    gradient_noise: bool = False
    """Whether the noise scale of gradients is measured, a column `noise_scale`; it costs some percent."""
    tensorboard: bool = True
    """Whether metrics are also written for TensorBoard."""
    tensorboard_histograms: bool = False
    """Whether TensorBoard also gets histograms of the weights at each evaluation checkpoint."""
    progress: bool = True
    """Whether a running trial shows a live panel, or lines where there is no terminal."""
    report: bool = True
    """Whether statistics, plots and a report are made when the trial has ended. The trials of a search make
    none unless this is typed as true; the search has its own."""

    def __post_init__(self) -> None:
        if self.async_unroll is not None and self.distributed:
            raise ValueError(
                "async_unroll gives each session an actor with weights of its own, and meta.distributed="
                f"{self.distributed} lets sessions train the same: set meta.async_unroll=null or "
                "meta.distributed=false"
            )
        if self.async_eval and self.tensorboard_histograms:
            raise ValueError(
                "async_eval=true tells of an evaluation when its weights have changed already, and "
                "meta.tensorboard_histograms=true shows them beside it: set one of the two to false"
            )
        if self.tensorboard_histograms and not self.tensorboard:
            raise ValueError(
                "tensorboard_histograms=true are shown by TensorBoard, and meta.tensorboard=false: set "
                "meta.tensorboard=true or meta.tensorboard_histograms=false"
            )
        if self.log == "histograms" and not self.tensorboard:
            raise ValueError(
                "log=histograms are shown by TensorBoard, and meta.tensorboard=false: set "
                "meta.tensorboard=true or meta.log=norms"
            )
        changed = [
            ("eval_episodes", self.eval_episodes, 1),
            ("eval_greedy", self.eval_greedy, False),
            ("eval_epsilon", self.eval_epsilon, 0.0),
            ("async_eval", self.async_eval, False),
        ]
        for name, value, default in changed:
            if value != default and not self.rigorous_eval:
                told = str(value).lower()
                raise ValueError(
                    f"{name}={told} needs environments to play in, and meta.rigorous_eval is "
                    f"{'null' if self.rigorous_eval is None else 0}: set meta.rigorous_eval=<n> or "
                    f"meta.{name}={str(default).lower()}"
                )


@dataclass(kw_only=True)
class WandbConfig:
    """Weights & Biases: one run of theirs for each session, in one group for each trial."""

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """auto: as WANDB_MODE or W&B's settings say, else online where there is a login, else off."""
    project: Project = "labrl"
    """Where the runs appear; made if need be; 1 to 128 characters without slashes, # ? % or :"""
    entity: str | None = None
    """User or team that owns the project; null: the login's own."""
    name: Name | None = None
    """Of the runs, followed by the session's number where there are several; null: that of the run folder."""
    group: Name | None = None
    """What the sessions of a trial are grouped under; null: the run folder, below that of its experiment."""
    tags: list[Tag] = field(default_factory=list)
    """Words to find the runs by, each of 1 to 64 characters."""
    artifacts: list[Literal["best", "report", "videos"]] = field(default_factory=list)
    """What is uploaded besides the numbers: each session's best model and videos, the trial's report."""
    wait: NonNegativeFloat = 60
    """Seconds that the end of a trial waits for uploads, >= 0."""


@dataclass(kw_only=True)
class TrialConfig:
    """One trial: an agent in an environment, and how it is run."""

    agent: Component
    """Who learns."""
    env: Component
    """Where; its `num_envs` and `max_frame` are the vector's size and the budget of a session."""
    meta: MetaConfig
    """How the trial is run."""
    wandb: WandbConfig
    """Whether and how it is shown on Weights & Biases."""
    search: SearchConfig
    """How an experiment looks for better values; a single trial takes no notice of it."""
    transforms: dict[str, Component | None]
    """The learner's view of observations and rewards, applied in order; null: off."""
    callbacks: dict[str, Component | None]
    """A user's own callbacks by name; null: off."""
    seed: NonNegativeInt | None
    """Of the trial, >= 0; null: drawn and recorded."""

    @property
    def eval_frames(self) -> int:
        """Frames between evaluation checkpoints."""
        return frames_between(self.meta.eval_frequency, self.env.config.max_frame)

    @property
    def log_frames(self) -> int:
        """Frames between training checkpoints."""
        return frames_between(self.meta.log_frequency, self.env.config.max_frame)
