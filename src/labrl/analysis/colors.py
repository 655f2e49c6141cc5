"""Colors and dashes that color-blind readers can distinguish, and that are the same for an agent in every
figure."""

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
"""The palette of Okabe and Ito (2008), Color Universal Design, without yellow and black, which are not
visible on both white and black backgrounds."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of dash and gap in points; none for a solid line."""

MARKERS = ("o", "s", "^", "D")
"""The marker for each of DASHES."""

CLEAR = 50
"""Smallest distance between the colors of two curves, of 441 from black to white."""


@dataclass(frozen=True)
class Style:
    """Style of one curve."""

    color: str
    dash: tuple[float, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of a single value, for which a dash would not be visible. Each dash has its own marker."""
        return MARKERS[DASHES.index(self.dash)]


_ORDER = (
    *("ppo", "dqn", "sac", "rainbow", "a2c", "td3"),
    *("reinforce", "double_dqn", "crossq", "c51", "sil_ppo", "ddpg"),
    *("sarsa", "dueling_dqn", "qr_dqn", "rainbow_lite", "recurrent_ppo", "recurrent_a2c"),
    *("recurrent_dqn", "sil_a2c", "pqn", "tqc", "iql", "td3_bc"),
)
"""The position of an agent determines its style, so new agents are appended."""


def agent_style(agent: str) -> Style:
    """Return the style of an agent in all figures. It is fixed for labrl's agents, and derived from the name
    for others."""
    if agent == "random":
        return Style(GRAY)
    if agent in _ORDER:
        dash, hue = divmod(_ORDER.index(agent), len(PALETTE))
        return Style(PALETTE[hue], DASHES[dash])
    number = zlib.crc32(agent.encode())
    return Style(PALETTE[number % len(PALETTE)], DASHES[1 + number // len(PALETTE) % (len(DASHES) - 1)])


def group_styles(agents: Sequence[str]) -> list[Style]:
    """Return a different style for each group of a comparison, given the agent of each.

    An agent with one group keeps its own style, or a shade of it if another agent has its color. If all
    groups have the same agent, they start with its style and continue through the palette; if there are other
    agents, they keep its hue, from dark to light, and its dashes. Groups of several agents get a hue that no
    other agent has, if one is left.
    """
    counts = Counter(agents)
    owns = {agent: agent_style(agent) for agent in counts}
    hues = {own.color for agent, own in owns.items() if agent != SEVERAL}
    owns[SEVERAL] = Style(next((color for color in PALETTE if color not in hues), PALETTE[0]))
    styles: dict[int, Style] = {}
    # Solid lines first: of agents with the same color, the first one keeps it, independent of their order.
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
    """Return `wanted`; if its color is taken, a shade of it or another hue; if all are taken, another
    dash."""
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
    """Return red, green and blue, 0 to 255 each."""
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def mix_color(color: str, share: float) -> str:
    """Return `color` mixed with a fraction of white, or of black if `share` is below 0."""
    other = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in _channels(color))
