"""Colours and dashes: safe for the colour-blind, and the same for the same agent in every plot and report."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from labrl.analysis.groups import SEVERAL

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
GREY = "#7F7F7F"
"""Colour of references, such as the random policy."""

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""Okabe and Ito (2008), Color Universal Design, but for the yellow and the black: neither is seen on both
white and black paper."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of dash and gap in points; none: a whole line."""

MARKERS = ("o", "s", "^", "D")
"""The shape that goes with each of DASHES."""

CLEAR = 50
"""Least distance of a colour from those beside it, of 441 from black to white."""


@dataclass(frozen=True)
class Style:
    """Style of one curve."""

    colour: str
    dash: tuple[float, ...] = ()

    @property
    def marker(self) -> str:
        """Marker of a single value, where a dash would be invisible: each dash has a shape."""
        return MARKERS[DASHES.index(self.dash)]


_ORDER = (
    *("ppo", "dqn", "sac", "rainbow", "a2c", "td3"),
    *("reinforce", "double_dqn", "crossq", "c51", "sil_ppo", "ddpg"),
    *("sarsa", "dueling_dqn", "qr_dqn", "rainbow_lite", "recurrent_ppo", "recurrent_a2c"),
    *("recurrent_dqn", "sil_a2c", "pqn", "tqc", "iql", "td3_bc"),
)
"""The place of an agent is its style: new names come last."""


def agent_style(agent: str) -> Style:
    """Return the style of an agent in all figures: fixed for labrl's agents, by name for others."""
    if agent == "random":
        return Style(GREY)
    if agent in _ORDER:
        dash, hue = divmod(_ORDER.index(agent), len(PALETTE))
        return Style(PALETTE[hue], DASHES[dash])
    number = zlib.crc32(agent.encode())
    return Style(PALETTE[number % len(PALETTE)], DASHES[1 + number // len(PALETTE) % (len(DASHES) - 1)])


def group_styles(agents: Sequence[str]) -> list[Style]:
    """One style for each group of a comparison, given the agent of each: no two are the same.

    An agent that has one group keeps its own style, or where another has its colour a shade of it. Groups of
    one agent among themselves begin with its style and go on through the palette; beside other agents they
    keep its hue, from dark to light, and its dashes. Groups of several agents have a hue that no agent
    beside them has, if one is left.
    """
    counts = Counter(agents)
    owns = {agent: agent_style(agent) for agent in counts}
    hues = {own.colour for agent, own in owns.items() if agent != SEVERAL}
    owns[SEVERAL] = Style(next((colour for colour in PALETTE if colour not in hues), PALETTE[0]))
    styles: dict[int, Style] = {}
    # whole lines first: of agents of one colour the first keeps it, whatever their order here
    for index in sorted(range(len(agents)), key=lambda place: len(owns[agents[place]].dash)):
        agent = agents[index]
        style, before, number = owns[agent], agents[:index].count(agent), counts[agent]
        if number > 1 and len(counts) > 1:
            dash = DASHES[(DASHES.index(style.dash) + before) % len(DASHES)]
            style = Style(mixed(style.colour, 1.1 * before / (number - 1) - 0.5), dash)
        elif number > 1:
            start = PALETTE.index(style.colour) if style.colour in PALETTE else 0
            colour = PALETTE[(start + before) % len(PALETTE)]
            style = Style(colour, DASHES[before // len(PALETTE) % len(DASHES)])
        styles[index] = _free(style, list(styles.values()))
    return [styles[index] for index in range(len(agents))]


def _free(wanted: Style, taken: Sequence[Style]) -> Style:
    """`wanted`, or where its colour is taken a shade of it, or another hue; where all are, another dash."""
    colours = [_channels(style.colour) for style in taken]
    if _channels(wanted.colour) not in colours:
        return wanted
    near = (
        Style(mixed(colour, share), dash)
        for dash in (wanted.dash, *DASHES)
        for colour in (wanted.colour, *PALETTE)
        for share in (0.0, -0.4, 0.4, -0.2, 0.2)
    )
    free = [style for style in near if style not in taken]
    clear = (one for one in free if min(math.dist(_channels(one.colour), other) for other in colours) > CLEAR)
    return next(clear, free[0] if free else wanted)


def _channels(colour: str) -> list[int]:
    """Red, green and blue, 0 to 255 each."""
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def mixed(colour: str, share: float) -> str:
    """`colour` with a share of white in it, below 0 of black."""
    other = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in _channels(colour))
