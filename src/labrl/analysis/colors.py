"""Colors and dashes that color-blind readers can distinguish. An agent has the same style in every figure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

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

    The first group of an agent has the agent's style if its color is free. Every other group has the next
    free color of the palette, or of its lighter and darker shades.
    """
    shades = (mix_color(color, share) for share in (0.0, 0.4, -0.4) for color in PALETTE)
    free = [Style(color, dash) for dash, color in product(DASHES, shades)]
    styles: dict[int, Style] = {}
    # Solid lines come first, so that the agent that keeps a color does not depend on the order of agents.
    firsts = sorted(
        (agents.index(agent) for agent in set(agents)), key=lambda at: len(agent_style(agents[at]).dash)
    )
    for index in [*firsts, *(at for at in range(len(agents)) if at not in firsts)]:
        own = agent_style(agents[index])
        taken = {style.color for style in styles.values()}
        if index in firsts and own.color not in taken:
            styles[index] = own
        else:
            unused = [style for style in free if style not in styles.values()]
            styles[index] = next((style for style in unused if style.color not in taken), unused[0])
    return [styles[index] for index in range(len(agents))]


def _channels(color: str) -> list[int]:
    """Return the red, green and blue values of a color, each from 0 to 255."""
    return [int(color[place : place + 2], 16) for place in (1, 3, 5)]


def mix_color(color: str, share: float) -> str:
    """Return `color` mixed with a fraction `share` of white, or with a fraction -`share` of black if `share`
    is negative."""
    other = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in _channels(color))
