"""Colors and dashes that color-blind readers can distinguish. An agent has the same style in every figure."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from labrl.analysis.groups import SEVERAL

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
GRAY = "#7F7F7F"
"""Color of references, such as the random policy."""

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""The palette of Okabe and Ito (2008), Color Universal Design. Yellow and black are left out, because neither
is visible on both white and black backgrounds."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of dashes and gaps in points; empty for a solid line."""

MARKERS = ("o", "s", "^", "D")
"""The marker for each of DASHES."""

CLEAR = 50
"""Minimum Euclidean distance between the RGB colors of two curves; black and white have a distance of 441."""


@dataclass(frozen=True)
class Style:
    """Style of one curve."""

    color: str
    dash: tuple[float, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of a single value, which cannot show a dash pattern. Each dash pattern has its own
        marker."""
        return MARKERS[DASHES.index(self.dash)]


_ORDER = (
    *("ppo", "dqn", "sac", "rainbow", "a2c", "td3"),
    *("reinforce", "double_dqn", "crossq", "c51", "sil_ppo", "ddpg"),
    *("sarsa", "dueling_dqn", "qr_dqn", "rainbow_lite", "recurrent_ppo", "recurrent_a2c"),
    *("recurrent_dqn", "sil_a2c", "pqn", "tqc", "iql", "td3_bc"),
)
"""The position of an agent determines its style, so new agents are appended."""


def agent_style(agent: str) -> Style:
    """Return the style that an agent has in all figures. The style is fixed for labrl's agents, and derived
    from the name for other agents."""
    if agent == "random":
        return Style(GRAY)
    if agent in _ORDER:
        dash, hue = divmod(_ORDER.index(agent), len(PALETTE))
        return Style(PALETTE[hue], DASHES[dash])
    number = zlib.crc32(agent.encode())
    return Style(PALETTE[number % len(PALETTE)], DASHES[1 + number // len(PALETTE) % (len(DASHES) - 1)])


def group_styles(agents: Sequence[str]) -> list[Style]:
    """Return a different style for each group of a comparison. agents: the agent of each group.

    An agent with a single group keeps its own style, or has a shade of its color if another agent has the
    same color. If all groups have the same agent, the first group has the agent's style and the others
    continue through the palette. If there are several agents, the groups of each have its hue, from dark to
    light, and dashes that start with its own. Groups whose runs have different agents get a hue that no agent
    has, if one is left.
    """
    counts = Counter(agents)
    owns = {agent: agent_style(agent) for agent in counts}
    hues = {own.color for agent, own in owns.items() if agent != SEVERAL}
    owns[SEVERAL] = Style(next((color for color in PALETTE if color not in hues), PALETTE[0]))
    styles: dict[int, Style] = {}
    # Solid lines come first, so that the agent that keeps a color does not depend on the order of agents.
    for index in sorted(range(len(agents)), key=lambda place: len(owns[agents[place]].dash)):
        agent = agents[index]
        style, before, number = owns[agent], agents[:index].count(agent), counts[agent]
        if number > 1 and len(counts) > 1:
            dash = DASHES[(DASHES.index(style.dash) + before) % len(DASHES)]
            style = Style(mix_color(style.color, 1.1 * before / (number - 1) - 0.5), dash)
        elif number > 1:
            start = PALETTE.index(style.color) if style.color in PALETTE else 0
            color = PALETTE[(start + before) % len(PALETTE)]
            style = Style(color, DASHES[before // len(PALETTE) % len(DASHES)])
        styles[index] = _free(style, list(styles.values()))
    return [styles[index] for index in range(len(agents))]


def _free(wanted: Style, taken: Sequence[Style]) -> Style:
    """Return `wanted` if its color is free; otherwise a style with a shade of the color or another hue; if
    all of these are taken, a style with another dash pattern."""
    colors = [_channels(style.color) for style in taken]
    if _channels(wanted.color) not in colors:
        return wanted
    near = (
        Style(mix_color(color, share), dash)
        for dash in (wanted.dash, *DASHES)
        for color in (wanted.color, *PALETTE)
        for share in (0.0, -0.4, 0.4, -0.2, 0.2)
    )
    free = [style for style in near if style not in taken]
    clear = (one for one in free if min(math.dist(_channels(one.color), other) for other in colors) > CLEAR)
    return next(clear, free[0] if free else wanted)


def _channels(color: str) -> list[int]:
    """Return the red, green and blue values of a color, each from 0 to 255."""
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def mix_color(color: str, share: float) -> str:
    """Return `color` mixed with a fraction `share` of white, or with a fraction -`share` of black if `share`
    is negative."""
    other = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in _channels(color))
