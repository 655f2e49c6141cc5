"""The configuration of a trial. The options of each component are defined next to the component.

All values are in `configs/`; no field here has a default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from labrl.component import Component
from labrl.config.traits import Continues, Scores, Traits, Watches
from labrl.dashboards.options import WandbConfig
from labrl.experiment.search.options import SearchConfig
from labrl.session.options import AsyncUnrollConfig, ProfileConfig, StartFromConfig
from labrl.types import (
    Early,
    Frequency,
    InfoKeys,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    RowFrequency,
    Seed,
    frames_between,
)


@dataclass(kw_only=True)
class MetaConfig:
    """Options that control how a trial is run, as opposed to what is learned.

    Exceptions: `precision`, `compile` and `kernels` change the last digits of results, `distributed` and
    `async_unroll` change which weights act, and `episode_window` changes the meaning of some columns.
    """

    distributed: Literal[False, "shared", "synced"]
    """Whether all sessions train the same weights without a lock (Hogwild). shared: all sessions update the
    same memory; synced: each session updates a copy and exchanges its changes after each update; false: each
    session has its own weights."""
    async_unroll: AsyncUnrollConfig | None
    """Options for acting in a separate process, ahead of the learner, with agents that have a replay buffer;
    such runs are not reproducible. null: the session acts itself."""
    rigorous_eval: Scores[NonNegativeInt | None]
    """Number of separate evaluation environments, >= 0; null or 0: scores come from the training episodes."""
    eval_episodes: Scores[PositiveInt]
    """Number of episodes that each evaluation environment plays per evaluation, >= 1."""
    eval_greedy: Scores[bool]
    """Whether evaluation uses greedy actions; false: actions are sampled from a stochastic policy. Agents
    that act by values are greedy in either case."""
    eval_epsilon: Scores[Probability]
    """Probability of a random action in each evaluation step, in [0, 1], for any agent."""
    async_eval: Annotated[bool, Traits(resume=True, same_group=True)]
    """Whether evaluation runs in a separate process, with a copy of the weights. Training waits only if the
    previous evaluation is still running, and at the end."""
    eval_frequency: Scores[Frequency]
    """Frames between evaluation checkpoints, >= 1; or a fraction of `env.max_frame`: "1/20"."""
    log_frequency: Continues[RowFrequency]
    """Frames between training checkpoints, >= 1; or a fraction of `env.max_frame`.

    `early:10000`: a checkpoint every 10,000 frames, and additional rows at the start. The gap before each
    early row is at most an eighth of the frames so far, so every run has at least ten rows. With several
    ranks, there are no early rows.
    """
    max_opt_step: Scores[PositiveInt | None]
    """Optimizer updates after which a session ends, even before `env.max_frame`, >= 1; null: no limit.

    The updates of a rollout or step are always completed, so that the run can be continued exactly: with 32
    updates per rollout, a limit of 100 ends the session at 128.
    """
    max_wall: Scores[PositiveFloat | None]
    """Seconds of training after which a session ends, even before `env.max_frame`, > 0; null: no limit."""
    stop_at_return: Scores[float | None]
    """Mean evaluation return at which a session ends as finished, even before `env.max_frame`; null: no
    limit."""
    patience: Scores[PositiveInt | None]
    """Number of consecutive evaluations without a new best mean return after which a session ends as
    finished, >= 1; null: no limit. Evaluations before the first finished episode do not count."""
    max_session: Annotated[PositiveInt, Traits(resume=True, same_group=True)]
    """Number of sessions in the trial, which differ only in the seed, >= 1."""
    max_trial: Annotated[PositiveInt | None, Traits(resume=True, same_group=True)]
    """Total number of trials in a search, >= 1; null: the number that search=<option> sets, or 20."""
    episode_window: PositiveInt
    """Number of finished episodes over which returns and lengths are averaged, >= 1."""
    keep_last: Watches[PositiveInt]
    """Number of latest checkpoints to keep in addition to the best, >= 1."""
    keep_every: Watches[Frequency | None]
    """Frames between checkpoints that are never removed, to fork from or to play, >= 1; or a fraction of
    `env.max_frame`: "1/4"; null: none. If the replay buffer is stored in files, each such checkpoint includes
    a copy of it."""
    num_cpus: Continues[PositiveFloat | None]
    """Number of cores for the whole trial, > 0; null: all cores that the process may use."""
    num_gpus: Continues[NonNegativeFloat | None]
    """Number of GPUs for the whole trial, >= 0. With a fraction such as 0.5, trials share a GPU. null: all
    GPUs; in an experiment, one GPU shared by the trials that run at the same time."""
    device: Continues[Literal["auto", "cpu", "cuda"]]
    """Device of the networks. auto: a GPU, if there is one, for agents that see images and, with CUDA graphs,
    for SAC, TQC, TD3 and DDPG; otherwise the CPU, which computes small networks several times as fast."""
    deterministic: Continues[bool]
    """Whether a GPU may only use deterministic algorithms; an operation that has none fails. false: a GPU may
    use any algorithm, so runs are not reproducible. On the CPU, all algorithms are deterministic."""
    precision: Literal["auto", "fp32", "bf16"]
    """Precision of networks for image observations; auto: bf16 if the processor is fast at it."""
    compile: bool
    """Whether to compile the networks with torch.compile, which makes them faster on GPUs after compiling for
    up to several minutes. It changes the last bits of results."""
    kernels: Literal["auto", "torch"]
    """Method of computing gradients. auto: kernels for fully connected networks on the CPU, which are several
    times as fast as autograd; torch: autograd alone. The results of the two methods differ in the last
    bits."""
    graphs: Continues[Literal["auto", "off"]]
    """Method of running updates on a GPU. auto: CUDA graphs repeat the updates of labrl's own agents, which
    saves the time of starting each operation; off: each operation is started separately. Both methods give
    the same results, bit for bit."""
    on_crash: Watches[Literal["skip", "save"]]
    """Whether a session that fails saves its state in the folder `crash`."""
    profile: Watches[ProfileConfig | None]
    """Frames to profile, such as {start: 10000, frames: 2048}; null: none."""
    record_episodes: Watches[Literal["none", "best_last", "each"]]
    """Episodes to record as seed and actions, a few KB each. best_last: the best and the latest episode among
    those that determine scores; each: also the latest episode of every evaluation."""
    videos: Watches[bool]
    """Whether to make videos at the end, of the best and the latest recorded episode of the best session."""
    log: Watches[Literal["scalars", "norms", "histograms"]]
    """Metrics to record in addition to scalars. norms: columns with the norm of each weight and its gradient;
    histograms: norms, and TensorBoard histograms of weights, gradients, layer outputs, actions and policy."""
    gradient_noise: Watches[bool]
    """Whether to measure the noise scale of gradients, as column `noise_scale`, which takes a few percent of
    the time."""
    tensorboard: Watches[bool]
    """Whether to also write metrics for TensorBoard."""
    progress: Watches[bool]
    """Whether to show a live panel while trials run, or lines if there is no terminal or notebook."""
    report: Watches[bool]
    """Whether to compute statistics, plots and a report when the trial ends. The trials of a search make no
    report unless the key is set to true on the command line; the search has its own report."""


@dataclass(kw_only=True)
class EnvironmentConfig:
    """Keys that every environment has."""

    name: str
    """Name of the environment in folder names and tables."""
    num_envs: PositiveInt
    """Number of environments that are stepped together, >= 1."""
    max_frame: Scores[PositiveInt]
    """Budget of a session in frames (agent steps summed over the environments), >= 1. Schedules have their
    own horizon, so a resume may change the budget."""
    info_keys: Watches[InfoKeys | None]
    """Entries of the environment's `info` to record as columns `info/<name>`; null: none; auto: `success` or
    `is_success` of the last step as `info/success`, if the environment has it. An episode's value is the last
    value of its steps, or the sum, mean, minimum or maximum of their values. A list of names means the last
    value. `a.b` is entry b of the dict a."""


@dataclass(kw_only=True)
class TrialConfig:
    """A trial: an agent in an environment, and how it is run."""

    agent: Component
    """The agent."""
    env: Annotated[Component, EnvironmentConfig]
    """The environment."""
    meta: MetaConfig
    """How the trial is run."""
    wandb: Watches[WandbConfig]
    """Logging to Weights & Biases."""
    search: Watches[SearchConfig]
    """Options of a search, which a single trial ignores."""
    transforms: dict[str, Component | None]
    """Transforms of observations and rewards before the learner, applied in order; null: off."""
    start_from: StartFromConfig
    """The run whose weights the agent starts from."""
    callbacks: Watches[dict[str, Component | None]]
    """Callbacks written by the user, by name; null: off."""
    seed: Annotated[Seed, Traits(same_group=True)]
    """Seed of the trial, >= 0; null: a seed is drawn and recorded. A grid of several groups also accepts
    `auto` or `auto:<seeds per stage>:<maximum per group>`, which adds seeds until the groups are decided."""

    @property
    def eval_frames(self) -> int:
        """Frames between evaluation checkpoints."""
        return frames_between(self.meta.eval_frequency, self.env.config.max_frame)

    @property
    def keep_frames(self) -> int | None:
        """Frames between checkpoints that are never removed; None if there are none."""
        frequency = self.meta.keep_every
        return None if frequency is None else frames_between(frequency, self.env.config.max_frame)

    @property
    def log_frames(self) -> int:
        """Frames between training checkpoints."""
        return frames_between(self.meta.log_frequency, self.env.config.max_frame)

    @property
    def early_rows(self) -> bool:
        """Whether there are additional training rows at the start of a session."""
        return isinstance(self.meta.log_frequency, Early)
