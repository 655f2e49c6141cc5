"""Colours and dashes: safe for the colour-blind, and the same for the same agent in every plot and report."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)
GREY = "#7F7F7F"
"""Of what others are compared with: the random policy, a reference."""

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""Okabe and Ito (2008), Color Universal Design, but for the yellow and the black: neither is seen on both
white and black paper."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of dash and gap in points; none: a whole line."""

MARKERS = ("o", "s", "^", "D")
"""The shape that goes with each of DASHES."""

@dataclass(frozen=True)
class Style:
    """How one curve is drawn."""

    colour: str
    dash: tuple[float, ...] = ()

    @property
    def line(self) -> Any:
        """Its dash as Matplotlib takes it."""
        return (0, self.dash) if self.dash else "-"

    @property
    def marker(self) -> str:
        """Of a value that stands alone, where a dash cannot be seen: each dash has a shape."""
        return MARKERS[DASHES.index(self.dash)]


_ORDER = (
    *("ppo", "dqn", "sac", "rainbow", "a2c", "td3"),
    *("reinforce", "double_dqn", "crossq", "c51", "sil", "ddpg"),
    *("sarsa", "dueling_dqn", "qr_dqn", "rainbow_lite", "recurrent_ppo", "recurrent_a2c"),
    "recurrent_dqn",
)
"""The place of an agent is its style: new names come last."""

_AGENTS = {
    "random": Style(GREY),
    **{
        name: Style(PALETTE[index % len(PALETTE)], DASHES[index // len(PALETTE)])
        for index, name in enumerate(_ORDER)
    },
}


def agent_style(agent: str) -> Style:
    """Of an agent, everywhere: fixed for those of labrl, by its name for one of your own."""
    if agent in _AGENTS:
        return _AGENTS[agent]
    number = zlib.crc32(agent.encode())
    return Style(PALETTE[number % len(PALETTE)], DASHES[1 + number // len(PALETTE) % (len(DASHES) - 1)])


def group_styles(agents: Sequence[str]) -> list[Style]:
    """One style for each group of a comparison, given the agent of each.

    An agent that has one group keeps its own style. Groups of one agent among themselves begin with it and
    go on through the palette; beside other agents they keep its hue, from dark to light, and its dashes.
    """
    counts = Counter(agents)
    styles: list[Style] = []
    for index, agent in enumerate(agents):
        own, before, number = agent_style(agent), agents[:index].count(agent), counts[agent]
        if number == 1:
            styles.append(own)
        elif len(counts) > 1:
            dash = DASHES[(DASHES.index(own.dash) + before) % len(DASHES)]
            styles.append(Style(mixed(own.colour, 1.1 * before / (number - 1) - 0.5), dash))
        else:
            start = PALETTE.index(own.colour) if own.colour in PALETTE else 0
            colour = PALETTE[(start + before) % len(PALETTE)]
            styles.append(Style(colour, DASHES[before // len(PALETTE) % len(DASHES)]))
    return styles


def mixed(colour: str, share: float) -> str:
    """`colour` with a share of white in it, below 0 of black."""
    other = 255 if share > 0 else 0
    channels = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in channels)
