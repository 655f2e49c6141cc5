"""Faster implementations of Gymnasium's classic control tasks that compute the same numbers.

Gymnasium steps these tasks with NumPy scalars, which are slower than Python floats. Both are float64 and call
the same functions of the C library, so results are equal bit for bit if operations keep their order. NumPy
arrays would be faster with many environments, but round powers differently than scalars.
MountainCarContinuous is left out because its state is float32, which Python does not have.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from labrl.envs.protocol import Backend, Transition

State = tuple[float, ...]
"""State variables of a task."""

COMPARED_STEPS = 100
"""Number of steps for which a task is compared with the installed Gymnasium before it is used."""


class Task(ABC):
    """The dynamics of one task, without a time limit."""

    ENTRY: ClassVar[str]
    """Gymnasium's entry point of the environment with these dynamics."""

    def __init__(self, spaces: tuple[Space[Any], Space[Any]]) -> None:
        """spaces: observation and action space."""
        self.spaces = spaces

    @abstractmethod
    def begin(self, generator: np.random.Generator) -> tuple[State, State]:
        """Return the state and observation at the start of an episode."""

    @abstractmethod
    def advance(self, state: State, action: Any) -> tuple[State, State, float, bool]:
        """Return the next state, its observation, the reward and whether the task has ended.

        action: action of the environment as Python numbers.
        """


class CartPole(Task):
    """Balance a pole on a cart (Barto, Sutton, and Anderson, 1983)."""

    ENTRY = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    FURTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360

    def begin(self, generator: np.random.Generator) -> tuple[State, State]:
        """Draw position, speed, angle and angular speed from [-0.05, 0.05]."""
        state = tuple(generator.uniform(-0.05, 0.05, 4).tolist())
        return state, state

    def advance(self, state: State, action: int) -> tuple[State, State, float, bool]:
        """Push the cart to the left (0) or right (1) for 0.02 s."""
        x, speed, angle, turning = state
        cos, sin = math.cos(angle), math.sin(angle)
        # Masses 1 (cart) and 0.1 (pole), half pole length 0.5, gravity 9.8, force 10.
        push = ((10.0 if action == 1 else -10.0) + 0.05 * (turning * turning) * sin) / 1.1
        angular = (9.8 * sin - cos * push) / (0.5 * (4.0 / 3.0 - 0.1 * (cos * cos) / 1.1))
        linear = push - 0.05 * angular * cos / 1.1
        x, speed = x + 0.02 * speed, speed + 0.02 * linear
        angle, turning = angle + 0.02 * turning, turning + 0.02 * angular
        fallen = not (-self.FURTHEST <= x <= self.FURTHEST and -self.STEEPEST <= angle <= self.STEEPEST)
        state = x, speed, angle, turning
        return state, state, 1.0, fallen


class MountainCar(Task):
    """Drive an underpowered car up a hill (Moore, 1990)."""

    ENTRY = "gymnasium.envs.classic_control.mountain_car:MountainCarEnv"

    def begin(self, generator: np.random.Generator) -> tuple[State, State]:
        """Draw the position from [-0.6, -0.4]. The speed is 0."""
        state = generator.uniform(-0.6, -0.4), 0.0
        return state, state

    def advance(self, state: State, action: int) -> tuple[State, State, float, bool]:
        """Accelerate to the left (0), not at all (1), or to the right (2)."""
        position, speed = state
        speed += (action - 1) * 0.001 + math.cos(3 * position) * -0.0025
        speed = min(max(speed, -0.07), 0.07)
        position = min(max(position + speed, -1.2), 0.6)
        if position == -1.2 and speed < 0:
            speed = 0.0
        state = position, speed
        return state, state, -1.0, position >= 0.5 and speed >= 0


class Pendulum(Task):
    """Swing up a pendulum with a torque in [-2, 2]. The task never terminates."""

    ENTRY = "gymnasium.envs.classic_control.pendulum:PendulumEnv"

    def begin(self, generator: np.random.Generator) -> tuple[State, State]:
        """Draw the angle from [-pi, pi] and the angular speed from [-1, 1]."""
        high = np.array([np.pi, 1.0])
        angle, turning = generator.uniform(-high, high).tolist()
        return (angle, turning), (math.cos(angle), math.sin(angle), turning)

    def advance(self, state: State, action: list[float]) -> tuple[State, State, float, bool]:
        """Apply a torque for 0.05 s. Acceleration and cost are computed in float32."""
        angle, turning = state
        torque = np.float32(min(max(action[0], -2.0), 2.0))
        from_top = (angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(from_top**2 + 0.1 * turning**2 + float(0.001 * torque**2))
        turning += (15.0 * math.sin(angle) + float(3.0 * torque)) * 0.05
        turning = min(max(turning, -8.0), 8.0)
        angle += turning * 0.05
        return (angle, turning), (math.cos(angle), math.sin(angle), turning), reward, False


class Acrobot(Task):
    """Swing up two linked bars with a torque at their joint (Sutton, 1996)."""

    ENTRY = "gymnasium.envs.classic_control.acrobot:AcrobotEnv"

    def begin(self, generator: np.random.Generator) -> tuple[State, State]:
        """Draw both angles and angular speeds from [-0.1, 0.1], in float32."""
        start = generator.uniform(-0.1, 0.1, 4).astype(np.float32)
        (cos1, cos2), (sin1, sin2) = np.cos(start[:2]), np.sin(start[:2])
        return tuple(start.tolist()), (cos1, sin1, cos2, sin2, start[2], start[3])

    def advance(self, state: State, action: int) -> tuple[State, State, float, bool]:
        """Apply a torque of -1 (0), 0 (1) or 1 (2) for 0.2 s, by one fourth-order Runge-Kutta step."""
        torque = action - 1.0
        k1 = self._rates(state, torque)
        k2 = self._rates(self._after(0.1, state, k1), torque)
        k3 = self._rates(self._after(0.1, state, k2), torque)
        k4 = self._rates(self._after(0.2, state, k3), torque)
        angle1, angle2, speed1, speed2 = [
            number + 0.2 / 6.0 * (first + 2 * second + 2 * third + fourth)
            for number, first, second, third, fourth in zip(state, k1, k2, k3, k4, strict=True)
        ]
        angle1, angle2 = _wrapped(angle1), _wrapped(angle2)
        speed1 = min(max(speed1, -4 * math.pi), 4 * math.pi)
        speed2 = min(max(speed2, -9 * math.pi), 9 * math.pi)
        cos1 = math.cos(angle1)
        up = -cos1 - math.cos(angle2 + angle1) > 1.0
        seen = cos1, math.sin(angle1), math.cos(angle2), math.sin(angle2), speed1, speed2
        return (angle1, angle2, speed1, speed2), seen, 0.0 if up else -1.0, up

    @staticmethod
    def _after(seconds: float, state: State, rates: State) -> State:
        """Return the state after `seconds` at constant rates of change."""
        angle1, angle2, speed1, speed2 = state
        turning1, turning2, faster1, faster2 = rates
        return (
            angle1 + seconds * turning1,
            angle2 + seconds * turning2,
            speed1 + seconds * faster1,
            speed2 + seconds * faster2,
        )

    @staticmethod
    def _rates(state: State, torque: float) -> State:
        """Return the time derivative of a state. Masses, lengths and moments of inertia are 1."""
        angle1, angle2, speed1, speed2 = state
        cos2, sin2 = math.cos(angle2), math.sin(angle2)
        d1 = 0.25 + (1.25 + cos2) + 1.0 + 1.0
        d2 = (0.25 + 0.5 * cos2) + 1.0
        phi2 = 4.9 * math.cos(angle1 + angle2 - math.pi / 2.0)
        phi1 = (
            -0.5 * speed2**2 * sin2
            - speed2 * speed1 * sin2
            + 1.5 * 9.8 * math.cos(angle1 - math.pi / 2)
            + phi2
        )
        faster2 = (torque + d2 / d1 * phi1 - 0.5 * speed1**2 * sin2 - phi2) / (1.25 - d2**2 / d1)
        return speed1, speed2, -(d2 * faster2 + phi1) / d1, faster2


def _wrapped(angle: float) -> float:
    """Return an angle in [-pi, pi], by adding or subtracting whole turns."""
    while angle > math.pi:
        angle = angle - 2 * math.pi
    while angle < -math.pi:
        angle = angle + 2 * math.pi
    return angle


TASKS: dict[str, type[Task]] = {task.ENTRY: task for task in (CartPole, MountainCar, Pendulum, Acrobot)}
"""Tasks by Gymnasium's entry point."""


class ClassicControl(Backend):
    """Backend that steps environments of one classic control task."""

    def __init__(self, task: Task, num_envs: int, limit: int, name: str = "") -> None:
        """limit: steps after which an episode is truncated."""
        self._task, self._limit = task, limit
        self.name, self.num_envs, self.frame_skip = name, num_envs, 1
        self.observation_space, self.action_space = copy.deepcopy(task.spaces)
        self._states: list[State] = [()] * num_envs
        self._steps, self._began = 0, np.zeros(num_envs, np.int64)
        self._first_cut = limit
        """First step in which an episode can reach the limit."""
        self._seen = np.zeros((num_envs, *(self.observation_space.shape or ())), np.float32)
        self._none = np.zeros(num_envs, np.bool_)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> NDArray:
        """Start new episodes where `mask` is set. mask, seeds: [num_envs]. Returns [num_envs, *obs]."""
        self._seen = self._seen.copy()
        for env in mask.nonzero()[0].tolist():
            generator = np.random.Generator(np.random.PCG64(int(seeds[env])))  # as Gymnasium makes it
            self._states[env], self._seen[env] = self._task.begin(generator)
            self._began[env] = self._steps
        self._first_cut = int(self._began.min()) + self._limit
        return self._seen

    def step(self, actions: NDArray) -> Transition:
        """Act in every environment. actions: [num_envs, *action]."""
        moved = map(self._task.advance, self._states, actions.tolist())
        states, seen, rewards, over = zip(*moved, strict=True)
        self._states[:] = states
        self._steps += 1
        self._seen = np.array(seen, np.float32)
        cut = self._none
        if self._steps >= self._first_cut:
            cut = self._steps - self._began >= self._limit
        ended = np.array(over, np.bool_) if True in over else self._none
        return Transition(self._seen, np.array(rewards, np.float64), ended, cut, ended)

    def close(self) -> None:
        """Do nothing, because there are no resources to free."""


@cache
def task_of(entry_point: str) -> Task | None:
    """Return the task for an entry point of Gymnasium.

    Returns None for other entry points, and if the installed Gymnasium or the machine's C library computes
    other numbers.
    """
    if entry_point not in TASKS:
        return None
    make: Any = gymnasium.envs.registration.load_env_creator(entry_point)
    env = make()
    task = TASKS[entry_point]((env.observation_space, env.action_space))
    try:
        return task if _plays_alike(task, env) else None
    finally:
        env.close()


def _plays_alike(task: Task, env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether a task and an environment compute the same numbers for COMPARED_STEPS random actions."""
    ours = ClassicControl(task, 1, COMPARED_STEPS + 1)
    actions, every = ours.action_space, np.ones(1, np.bool_)
    actions.seed(0)
    over = True
    for step in range(COMPARED_STEPS):
        if over:
            seen = ours.reset(every, np.array([step]))
            if not np.array_equal(seen[0], env.reset(seed=step)[0]):
                return False
        action = actions.sample()
        answer = ours.step(np.array([action], actions.dtype))
        theirs, reward, over, _, _ = env.step(action)
        same = np.array_equal(answer.observation[0], theirs) and answer.reward[0] == reward
        if not (same and answer.ended[0] == over):
            return False
    return True
