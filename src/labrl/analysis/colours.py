"""Colours and dashes that colour-blind readers can distinguish, and that are the same for an agent in every
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
GREY = "#7F7F7F"
"""Colour of references, such as the random policy."""

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY)
"""The palette of Okabe and Ito (2008), Color Universal Design, without yellow and black, which are not
visible on both white and black backgrounds."""

DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))
"""Lengths of dash and gap in points; none for a solid line."""

MARKERS = ("o", "s", "^", "D")
"""The marker for each of DASHES."""

CLEAR = 50
"""Smallest distance between the colours of two curves, of 441 from black to white."""


@dataclass(frozen=True)
class Style:
    """Style of one curve."""

    colour: str
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
        return Style(GREY)
    if agent in _ORDER:
        dash, hue = divmod(_ORDER.index(agent), len(PALETTE))
        return Style(PALETTE[hue], DASHES[dash])
    number = zlib.crc32(agent.encode())
    return Style(PALETTE[number % len(PALETTE)], DASHES[1 + number // len(PALETTE) % (len(DASHES) - 1)])


def group_styles(agents: Sequence[str]) -> list[Style]:
    """Return a different style for each group of a comparison, given the agent of each.

    An agent with one group keeps its own style, or a shade of it if another agent has its colour. If all
    groups have the same agent, they start with its style and continue through the palette; if there are other
    agents, they keep its hue, from dark to light, and its dashes. Groups of several agents get a hue that no
    other agent has, if one is left.
    """
    counts = Counter(agents)
    owns = {agent: agent_style(agent) for agent in counts}
    hues = {own.colour for agent, own in owns.items() if agent != SEVERAL}
    owns[SEVERAL] = Style(next((colour for colour in PALETTE if colour not in hues), PALETTE[0]))
    styles: dict[int, Style] = {}
    # Solid lines first: of agents with the same colour, the first one keeps it, independent of their order.
    for index in sorted(range(len(agents)), key=lambda place: len(owns[agents[place]].dash)):
        agent = agents[index]
        style, before, number = owns[agent], agents[:index].count(agent), counts[agent]
        if number > 1 and len(counts) > 1:
            dash = DASHES[(DASHES.index(style.dash) + before) % len(DASHES)]
            style = Style(mix_colour(style.colour, 1.1 * before / (number - 1) - 0.5), dash)
        elif number > 1:
            start = PALETTE.index(style.colour) if style.colour in PALETTE else 0
            colour = PALETTE[(start + before) % len(PALETTE)]
            style = Style(colour, DASHES[before // len(PALETTE) % len(DASHES)])
        styles[index] = _free(style, list(styles.values()))
    return [styles[index] for index in range(len(agents))]


def _free(wanted: Style, taken: Sequence[Style]) -> Style:
    """Return `wanted`; if its colour is taken, a shade of it or another hue; if all are taken, another
    dash."""
    colours = [_channels(style.colour) for style in taken]
    if _channels(wanted.colour) not in colours:
        return wanted
    near = (
        Style(mix_colour(colour, share), dash)
        for dash in (wanted.dash, *DASHES)
        for colour in (wanted.colour, *PALETTE)
        for share in (0.0, -0.4, 0.4, -0.2, 0.2)
    )
    free = [style for style in near if style not in taken]
    clear = (one for one in free if min(math.dist(_channels(one.colour), other) for other in colours) > CLEAR)
    return next(clear, free[0] if free else wanted)


def _channels(colour: str) -> list[int]:
    """Return red, green and blue, 0 to 255 each."""
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def mix_colour(colour: str, share: float) -> str:
    """Return `colour` mixed with a fraction of white, or of black if `share` is below 0."""
    other = 255 if share > 0 else 0
    return "#" + "".join(f"{round(c + (other - c) * abs(share)):02X}" for c in _channels(colour))
