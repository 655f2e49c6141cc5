"""A comparison as Markdown, CSV and LaTeX: every name is shown as it is, whatever signs are in it."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest

from labrl.analysis.intervals import probability_of_improvement
from labrl.analysis.tables import as_csv, as_latex, as_markdown, comparison_rows, number

NOTHING = {"mean": None, "std": None, "n": 0}


def group(name: str, final: float, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "agent": "ppo",
        "runs": ["a"],
        "counted": 4,
        "left_out": [],
        "threshold": {"value": 475.0, "source": "gymnasium"},
        "consistency": 0.5,
        "estimates": {"final_return": {"iqm": {"value": final, "low": final - 1, "high": final + 1.25}}},
        "measures": {
            "final_return": {"mean": final, "std": 2.0, "n": 4},
            "area_under_curve": NOTHING,
            "human_normalized": NOTHING,
            "frames_to_threshold": {"mean": 12_500.0, "std": None, "n": 3},
            "stability": {"mean": 0.25, "std": None, "n": 4},
        },
        **changes,
    }


def comparison(*names: str) -> dict[str, Any]:
    groups = [group(name, 100.0 * (place + 1)) for place, name in enumerate(names)]
    pairs = [{"x": names[0], "y": other, "value": 0.25, "low": 0.1, "high": 0.4} for other in names[1:]]
    return {"envs": [{"env": "cart_pole", "groups": groups, "improvement": pairs}]}


ROWS = comparison_rows(comparison("lr=0.1", "lr=0.2"))


def test_rows_are_raw_numbers_with_each_group_against_the_best() -> None:
    first, best = ROWS
    assert first["final_return_iqm"] == 100
    assert (first["final_return_iqm_low"], first["final_return_iqm_high"]) == (99, 101.25)
    assert (first["rival"], first["improvement"], first["improvement_high"]) == ("lr=0.2", 0.25, 0.4)
    assert (best["rival"], best["improvement"]) == (None, None)
    assert (first["consistency"], first["stability"], first["frames_to_threshold"]) == (0.5, 0.25, 12_500)


def test_a_pair_that_stands_the_other_way_is_turned_round() -> None:
    told = comparison("a", "b")
    told["envs"][0]["groups"].reverse()
    told["envs"][0]["improvement"] = [{"x": "b", "y": "a", "value": 0.75, "low": 0.5, "high": 1.0}]
    row = next(row for row in comparison_rows(told) if row["group"] == "a")
    assert (row["improvement"], row["improvement_low"], row["improvement_high"]) == (0.25, 0.0, 0.5)


def test_csv_has_a_column_for_each_number_and_reads_back() -> None:
    read = list(csv.DictReader(io.StringIO(as_csv([*ROWS, {"env": 'a,"b"\n', "new": 1}]))))
    assert read[0]["final_return_iqm_high"] == "101.25"
    assert read[1]["rival"] == ""
    assert (read[2]["env"], read[2]["new"], read[2]["group"]) == ('a,"b"\n', "1", "")


def test_markdown_is_a_table_for_a_person() -> None:
    assert as_markdown(ROWS).splitlines() == [
        "| environment | group  | seeds |   final return (IQM) | frames to 475.0 | P(better than lr=0.2) |",
        "| ----------- | ------ | ----: | -------------------: | --------------: | --------------------: |",
        r"| cart\_pole  | lr=0.1 |     4 | 100.0 [99.00, 101.2] | 12,500 (3 of 4) |  0.250 [0.100, 0.400] |",
        r"| cart\_pole  | lr=0.2 |     4 | 200.0 [199.0, 201.2] | 12,500 (3 of 4) |                     – |",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("a|b", r"a\|b"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("[x](http://y)", r"\[x\](http://y)"),
        ("*a*_b_`c`\n", r"\*a\*\_b\_\`c\`"),
    ],
)
def test_markdown_shows_a_name_as_it_is(name: str, told: str) -> None:
    table = as_markdown(comparison_rows(comparison(name)))
    assert told in table
    assert len(table.splitlines()) == 3


def test_latex_is_a_booktabs_table_with_the_best_in_bold() -> None:
    assert as_latex(ROWS).splitlines() == [
        r"\begin{tabular}{llrrrr}",
        r"\toprule",
        r"environment & group & seeds & final return (IQM) & frames to 475.0 & P(better than lr=0.2) \\",
        r"\midrule",
        r"cart\_pole & lr=0.1 & 4 & 100.0 [99.00, 101.2] & 12,500 (3 of 4) & 0.250 [0.100, 0.400] \\",
        r" & lr=0.2 & 4 & \textbf{200.0 [199.0, 201.2]} & 12,500 (3 of 4) & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("50% & $x_1^2$ #{a}", r"50\% \& \$x\_1\textasciicircum{}2\$ \#\{a\}"),
        ("\\input{x}~<|>", r"\textbackslash{}input\{x\}\textasciitilde{}\textless{}\textbar{}\textgreater{}"),
        ("[1, 2]", "{}[1, 2]"),
    ],
)
def test_latex_shows_a_name_as_it_is(name: str, told: str) -> None:
    assert told in as_latex(comparison_rows(comparison(name)))


def test_no_rows_are_no_table() -> None:
    assert (as_markdown([]), as_latex([])) == ("", "")
    assert as_csv([]) == "\n"


@pytest.mark.parametrize(
    ("value", "told"),
    [(None, "–"), (0.0, "0.000"), (-0.0001, "0.000"), (-21, "−21.00"), (123.45, "123.5"), (1e6, "1,000,000")],
)
def test_numbers_are_as_long_as_they_deserve(value: float | None, told: str) -> None:
    assert number(value) == told


def test_turning_a_probability_round_is_what_the_statistic_itself_does() -> None:
    x, y = [[1.0, 2, 3, 9]], [[2.0, 5, 0]]
    one, other = probability_of_improvement(x, y), probability_of_improvement(y, x)
    assert one.value == pytest.approx(1 - other.value)
