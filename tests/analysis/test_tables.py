"""Tests of comparisons as Markdown, CSV and LaTeX tables, with any characters in the names."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import pytest

from labrl.analysis.formats import brackets, interval
from labrl.analysis.intervals import probability_of_improvement
from labrl.analysis.statistics import MEASURES
from labrl.analysis.tables import as_csv, comparison_rows, legend, readable

NOTHING = {"mean": None, "std": None, "n": 0}


def group(name: str, final: float, **changes: Any) -> dict[str, Any]:
    estimate = {"value": final, "low": final - 1, "high": final + 1.25}
    known = {
        "final_return": {"mean": final, "std": 2.0, "n": 4},
        "frames_to_threshold": {"mean": 12_500.0, "std": None, "n": 3},
        "stability": {"mean": 0.25, "std": None, "n": 4},
    }
    return {
        "name": name,
        "agent": "ppo",
        "runs": ["a"],
        "counted": 4,
        "left_out": [],
        "threshold": {"value": 475.0, "source": "gymnasium"},
        "consistency": 0.5,
        "estimates": {"final_return": {"mean": estimate, "iqm": estimate}},
        "measures": dict.fromkeys(MEASURES, NOTHING) | known,
        **changes,
    }


def comparison(*names: str) -> dict[str, Any]:
    groups = [group(name, 200.0 - 100 * place) for place, name in enumerate(names)]
    pairs = [{"x": names[0], "y": other, "value": 0.25, "low": 0.1, "high": 0.4} for other in names[1:]]
    return {"envs": [{"env": "cart_pole", "groups": groups, "improvement": pairs}]}


ROWS = comparison_rows(comparison("lr=0.1", "lr=0.2"))


def test_rows_are_raw_numbers_and_compare_each_group_with_the_best() -> None:
    best, other = ROWS.to_dicts()
    assert (other["final_return"], other["statistic"]) == (100, "mean")
    assert (other["final_return_low"], other["final_return_high"]) == (99, 101.25)
    assert other["rival"] == "lr=0.1"
    inverted = [other[f"improvement{end}"] for end in ("", "_low", "_high")]
    assert inverted == pytest.approx([0.75, 0.6, 0.9]), "the pair is in the opposite order"
    assert (best["rival"], best["improvement"]) == (None, None)
    assert (other["consistency"], other["stability"], other["frames_to_threshold"]) == (0.5, 0.25, 12_500)
    assert [line.partition(":")[0] for line in legend(ROWS)] == ["[low, high]", "P(better)"]


def test_csv_has_a_column_for_each_number_and_can_be_read_back() -> None:
    first, second = csv.DictReader(io.StringIO(as_csv(comparison_rows(comparison("b", 'a,"b"\n')))))
    assert (second["group"], second["final_return_high"], second["rival"]) == ('a,"b"\n', "101.25", "b")
    assert (first["rival"], first["human_normalized_iqm"]) == ("", "")


def test_readable_table_has_formatted_numbers() -> None:
    heads, _, other = readable(comparison_rows(comparison("best", "ppo")))
    row = dict(zip(heads, other, strict=True))
    assert (row["environment"], row["group"]) == ("cart_pole", "ppo")
    assert {"12,500 (3 of 4)", "100.0 [99.0, 101.2]", "0.75 [0.60, 0.90]"} <= set(other)


@pytest.mark.parametrize(("runs", "low"), [(2, 0.386), (4, 0.582), (10, 0.800)])
def test_interval_has_a_width_even_if_every_seed_is_better(runs: int, low: float) -> None:
    """Regression test: resampling gave 4 seeds against 4 worse ones an interval from 1.00 to 1.00."""
    x, y = [10.0 + place for place in range(runs)], [float(place) / runs for place in range(runs)]
    assert probability_of_improvement([x], [y]) == pytest.approx((1.0, low, 1.0), abs=0.01)
    assert probability_of_improvement([y], [x]) == pytest.approx((0.0, 0.0, 1 - low), abs=0.01)


@pytest.mark.parametrize(
    ("value", "low", "high", "decimals"),
    [
        (163, 159.5, 172.64, 1),
        (-20.5, -21, -19.999, 1),
        (999.96, 1, 999.97, 0),
        (5.25, -1e-5, 10, 2),
    ],
)
def test_estimate_and_its_interval_have_the_same_decimals(
    value: float, low: float, high: float, decimals: int
) -> None:
    numbers = re.findall(r"-?[\d.,]*\d", brackets(value, low, high))
    assert [len(number.partition(".")[2]) for number in numbers] == [decimals] * 3
    assert [float(number.replace(",", "")) for number in numbers] == [
        pytest.approx(each, abs=0.5 * 10**-decimals) for each in (value, low, high)
    ]
    assert interval(low, high, value).split(" to ") == numbers[1:]
    assert not [number for number in numbers if number.startswith("-") and not float(number.replace(",", ""))]


def test_numbers_without_a_common_format_are_formatted_separately() -> None:
    assert brackets(12.5, None, None) == "12.5"
    numbers = brackets(1e-5, 1e-6, 2e-5).replace("[", "").replace("]", "").split()
    assert [float(number.strip(",")) for number in numbers] == [1e-5, 1e-6, 2e-5]
    assert interval(float("nan"), 1.0) == ""
