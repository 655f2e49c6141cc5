"""Two upper limits on the frames per second of a problem on this machine.

Eager ceiling: environments, acting and learning are measured alone, each in the fastest form of PyTorch's
eager mode. `composition` adds them up to the time that a frame would take if nothing else took time (storage,
minibatches, advantages, optimizer, logging) and no two parts ran at once.

Arithmetic ceiling: the floating-point operations of acting and learning at the speed at which large matrices
are multiplied.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.alone import Measured, answer
from benchmarks.problems import Problem, problem_of
from labrl.agents.random import uniform_actions
from labrl.clock import Clock
from labrl.config.compose import compose, resolve
from labrl.config.schema import TrialConfig
from labrl.envs.make import make_env
from labrl.envs.vector import VectorEnv
from labrl.learning.compute import Compute
from labrl.learning.make import make_learner
from labrl.learning.optimizers import Adam, AdamConfig
from labrl.memory import Columns
from labrl.networks.actor_critic import ActorCritic
from labrl.seeding import Streams
from labrl.spaces import Spaces

MATRIX = 1024
"""Number of rows and columns of the matrices whose product is timed."""

WARM_UP = 0.2
"""Warm-up time as a fraction of the measured time."""

Variant = dict[str, int | str]
"""Number of environment threads, or number of torch threads and gradient workers, and precision."""

Outputs = Tensor | tuple[Tensor | None, ...]
"""Outputs of a network."""


@dataclasses.dataclass(frozen=True)
class _Observations(Columns):
    observation: Tensor


def variants(part: str, precisions: list[str], cores: int) -> list[Variant]:
    """Return the variants of a part of which one is fastest on a machine with this many cores."""
    counts = sorted({1, cores})
    if part == "env":
        return [{"threads": n} for n in counts]
    pairs = [(1, 1), (cores, 1), (1, cores)] if cores > 1 else [(1, 1)]
    if part == "matrices":
        pairs = [(n, 1) for n in counts]
    return [
        {"threads": threads, "workers": workers, "precision": precision}
        for threads, workers in pairs
        for precision in precisions
    ]


def composition(problem: Problem, env: float, act: float, gradient: float, bootstrap: float = 0.0) -> float:
    """Compute frames per second from the seconds of each part.

    env: seconds of an environment step per frame. act: of a forward pass over all environments per frame.
    gradient: of a forward and backward pass over a minibatch per sample. bootstrap: of a forward pass over a
    minibatch per sample.
    """
    sample = gradient + problem.bootstraps_per_sample * bootstrap
    return 1 / (env + act + problem.samples_per_frame * sample)


def arithmetic(problem: Problem, forward: float, gradient: float, speed: float) -> float:
    """Compute frames per second at `speed` operations per second.

    forward: operations of a forward pass of one observation. gradient: of a forward and backward pass.
    """
    sample = gradient + problem.bootstraps_per_sample * forward
    return speed / (forward + problem.samples_per_frame * sample)


def measure(
    problem: str,
    part: str,
    seconds: float,
    threads: int,
    workers: int = 1,
    precision: str = "fp32",
    compiled: bool = False,
) -> Measured:
    """Measure the seconds of a part of the problem.

    They are per frame (env, act), sample (gradient, bootstrap) or operation (matrices). The part `operations`
    returns the number of operations instead, in a forward pass and in a forward and backward pass. compiled:
    use torch.compile; compiling is not included in the time.
    """
    chosen = problem_of(problem)
    config = resolve(compose([*chosen.overrides(), "seed=0"]))
    torch.set_num_threads(1 if part == "env" else threads)
    if part == "matrices":
        return {"seconds": _matrices(seconds, precision)}
    env = make_env(config.env, seed=0, num_threads=threads)
    try:
        if part == "env":
            return {"seconds": _env(chosen, env, seconds)}
        if part == "operations":
            return _operations(chosen, config, env)
        count = chosen.num_envs if part == "act" else chosen.batch_size
        return {"seconds": _network(chosen, config, env, part, count, seconds, workers, precision, compiled)}
    finally:
        env.close()


def _env(problem: Problem, env: VectorEnv, seconds: float) -> float:
    """Measure the seconds of environment steps per frame, without choosing actions.

    The measurement begins when every environment has ended an episode, because each game creates a second
    emulator then, which happens only once.
    """
    rng = np.random.default_rng(0)
    observation = env.reset()
    spent, frames, begin = 0.0, 0, time.perf_counter()
    in_first = set(range(env.num_envs))
    while spent < seconds:
        action = _actions(problem, env, observation, rng)
        started = time.perf_counter()
        step = env.step(action)
        now = time.perf_counter()
        observation = step.observation
        if now - begin > WARM_UP * seconds and not in_first:
            spent += now - started
            frames += env.num_envs
        in_first.difference_update(episode.env for episode in step.episodes)
    return spent / frames


def _actions(problem: Problem, env: VectorEnv, observation: NDArray, rng: np.random.Generator) -> NDArray:
    """Draw random actions, but balance the pole on CartPole, where resets would make the ceiling too low."""
    if problem.env != "cartpole":
        return uniform_actions(env.action_space, env.num_envs, rng)
    return (observation[:, 2] + 0.5 * observation[:, 3] > 0).astype(np.int64)


def _network(
    problem: Problem,
    config: TrialConfig,
    env: VectorEnv,
    part: str,
    count: int,
    seconds: float,
    workers: int,
    precision: str,
    compiled: bool,
) -> float:
    """Measure the seconds of a forward pass over `count` observations, per observation.

    The part `gradient` includes the backward pass.
    """
    compute = dataclasses.replace(Compute.choose("cpu", precision, workers), compiled=compiled)
    agent, spaces = _agent(config, env, compute)
    network = agent.modules()[problem.network]
    learner = make_learner(
        network, spaces, compute, lambda flat: Adam(AdamConfig(eps=1e-8, beta1=0.9), [flat.vector], None)
    )
    observations = _observations(network, env, count)
    minibatch = _Observations(torch.from_numpy(observations))
    policy_alone = isinstance(network, ActorCritic) and not network.shared
    options: dict[str, Any] = {"value": False} if policy_alone else {}

    if part == "gradient":
        spent = _repeat(lambda: learner.gradient(_loss, minibatch), seconds)
    else:
        spent = _repeat(lambda: learner.forward(observations, **options), seconds)
    learner.close()
    agent.close()
    return spent / count


def _agent(config: TrialConfig, env: VectorEnv, compute: Compute) -> tuple[Any, Spaces]:
    spaces = Spaces(env.observation_space, env.action_space, env.num_envs)
    return config.agent.build(spaces=spaces, clock=Clock(1), streams=Streams(0), compute=compute), spaces


def _loss(network: Callable[..., Outputs], part: _Observations) -> tuple[Tensor, Tensor]:
    """Return a loss that depends on every output and costs little beside the network."""
    outputs = network(part.observation)
    tensors = [outputs] if isinstance(outputs, Tensor) else [each for each in outputs if each is not None]
    mean = torch.stack([output.square().mean() for output in tensors]).sum()
    return mean, mean.detach().reshape(1)


def _operations(problem: Problem, config: TrialConfig, env: VectorEnv) -> Measured:
    """Count the floating-point operations of matrix products and convolutions."""
    agent, _ = _agent(config, env, Compute.choose("cpu", "fp32", 1))
    network = agent.modules()[problem.network]
    batch = _Observations(torch.from_numpy(_observations(network, env, problem.batch_size)))
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        network(batch.observation)
    with FlopCounterMode(display=False) as gradient:
        _loss(network, batch)[0].backward()
    agent.close()
    return {
        "forward": forward.get_total_flops() / problem.batch_size,
        "gradient": gradient.get_total_flops() / problem.batch_size,
    }


def _matrices(seconds: float, precision: str) -> float:
    """Measure the seconds of a floating-point operation in a product of large matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right, product = (torch.rand(MATRIX, MATRIX, dtype=dtype) for _ in range(3))
    return _repeat(lambda: torch.mm(left, right, out=product), seconds) / (2 * MATRIX**3)


def _observations(network: nn.Module, env: VectorEnv, count: int) -> NDArray:
    """Collect `count` observations with random actions, in the network's memory layout. [count, *obs]"""
    rng = np.random.default_rng(0)
    collected = [env.reset()]
    while len(collected) * env.num_envs < count:
        actions = uniform_actions(env.action_space, env.num_envs, rng)
        collected.append(env.step(actions).observation)
    observations = np.concatenate(collected)[:count]
    return network.layout(observations)  # type: ignore[operator]


def _repeat(work: Callable[[], object], seconds: float) -> float:
    """Measure the mean seconds of a call over at least `seconds`, after a warm-up."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP * seconds:
        work()
    calls, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        work()
        calls += 1
    return (time.perf_counter() - begin) / calls


if __name__ == "__main__":
    answer(measure)
