"""Tests of the documentation: commands and snippets run, links resolve, and tables are complete."""

from __future__ import annotations

import csv
import importlib.util
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import chromium
from exact_cases import differences
from one_process import ONE_PROCESS

import labrl
from labrl import cli
from labrl.errors import WRONG_INPUT

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
QUIET = ["meta.progress=false", "meta.tensorboard=false"]
PROGRAMS = {
    "labrl": cli.main,
    "labrl-replay": cli.replay,
    "labrl-runs": cli.list_runs,
    "labrl-report": cli.report,
    "labrl-clean": cli.clean,
    "labrl-envs": cli.list_envs,
}
PLACEHOLDER = re.compile(r"<[a-z ]+>|\.\.\.|\*")


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def commands(page: str) -> list[str]:
    """Return the command lines of a page in order, from indented and fenced blocks, without comments."""
    fences = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    indented = fences.sub(
        lambda fence: textwrap.indent(fence[2], "    ") if fence[1] == "sh" else "",
        text(page).replace("\\\n", " "),
    )
    lines = re.findall(r"^    (?:\$ )?(labrl(?:-\w+)?(?: .*)?)$", indented, re.MULTILINE)
    return [line.partition(" #")[0].strip() for line in lines if not line.startswith("labrl:")]


def overrides_of(command: str) -> tuple[str, list[str]]:
    program, *overrides = shlex.split(command)
    return program, [override.replace("docs/examples", str(DOCS / "examples")) for override in overrides]


pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.extended]


SHORT = {
    **{"3000": "1536", "4000": "1024"},
    **{"10000": "512", "20000": "1024", "30000": "1024", "300000": "2048"},
}
"""Budgets (frames) in the documentation, and the shorter ones that the tests run instead."""


def shortened(overrides: list[str]) -> list[str]:
    def short(found: re.Match[str]) -> str:
        return f"env.max_frame={SHORT.get(found[1], found[1])}"

    overrides = [re.sub(r"^env\.max_frame=(\d+)$", short, override) for override in overrides]
    starts_run = not any(
        override.startswith(("+resume", "+enjoy", "--cfg", "--info", "+rerun")) for override in overrides
    )
    if starts_run and not any(override.startswith("env.max_frame=") for override in overrides):
        overrides.append("env.max_frame=1024")
    searches = any("optuna" in override for override in overrides)  # whose trials ask another process
    in_process = (
        [ONE_PROCESS] if "-m" in overrides and not searches else []
    )  # starting processes takes seconds
    return [*overrides, *QUIET, *in_process] if starts_run else overrides


def run_command(command: str) -> int:
    """Run a command of a page with a small budget and return its exit code."""
    program, overrides = overrides_of(command)
    return PROGRAMS[program](shortened(overrides) if program == "labrl" else overrides)


RUN = (
    "tutorial/first-run.md",
    "tutorial/own-agent.md",
    "how-to/resume.md",
    "how-to/play.md",
    "how-to/disk.md",
    "how-to/extend.md",
)
"""Pages whose commands are run one after the other; the commands of all other pages are only composed."""

REFUSED = ("agent.n_steps=256", "labrl agent.learning_rate=1e-3", "agent=penalty_ppo agent.penalty=1")
"""Endings of commands that a page shows as examples of refused input."""

FEWER = {
    "+resume=runs/cut": "+resume=runs/cut meta.max_session=2",  # the run is complete: no one pressed Ctrl-C
    "agent=ppo,dqn seed=0,1,2,3": "agent=ppo,dqn seed=0",
    "seed=0,1,2,3": "seed=0",
    "meta.max_trial=6": "meta.max_trial=2 search.confirm=null meta.eval_frequency=100",
}
"""Experiments in the documentation, and the smaller ones that the tests run instead."""


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page_run_in_order(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = commands(page)
    assert len(found) >= 4
    for command in found:
        if PLACEHOLDER.search(command):
            continue
        for documented, smaller in FEWER.items():
            command = command.replace(documented, smaller)
        expected = WRONG_INPUT if command.endswith(REFUSED) else 0
        assert run_command(command) == expected, command + capsys.readouterr().err


def composed_overrides(command: str) -> list[str] | None:
    """Return the overrides that compose the configuration of a command; None if there is none to compose."""
    program, overrides = overrides_of(command)
    if (
        program != "labrl"
        or PLACEHOLDER.search(command)
        or any(w.startswith(("+resume", "+r", "+enjoy", "+fork")) for w in overrides)
    ):
        return None
    if any(
        "interval(" in override or "choice(" in override or "range(" in override for override in overrides
    ):
        return None  # tests/experiment/test_search_input.py covers search spaces
    if "-m" in overrides:
        overrides.remove("-m")
        overrides = [
            override.partition(",")[0] if "[" not in override else override for override in overrides
        ]
        # A comparison in stages chooses the seeds.
        overrides = [re.sub("^seed=auto.*", "seed=0", override) for override in overrides]
    return overrides if {"--cfg", "--info", "--help"} & set(overrides) else ["--cfg", "job", *overrides]


COMPOSED = {
    one: page
    for page in ["../README.md", *PAGES]
    if page not in RUN
    for one in commands(page)
    if composed_overrides(one)
}


@pytest.mark.parametrize(("command", "page"), COMPOSED.items())
def test_commands_of_other_pages_compose(command: str, page: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = WRONG_INPUT if command.endswith(REFUSED) else 0
    assert cli.main(composed_overrides(command)) == expected, capsys.readouterr().err


def snippets() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for code in re.findall(r"```python\n(import labrl\n.*?)```", text(page), re.DOTALL):
            if (
                "labrl.train(" in code or "labrl.sweep(" in code
            ):  # tests/trial/test_load.py runs the snippets that load a policy
                yield page, code


@pytest.mark.parametrize(("page", "code"), list(snippets()))
def test_python_snippets_run(page: str, code: str) -> None:
    # The evaluation at the end of a budget is none from which a best model is kept.
    shorter = '2048", "meta.eval_frequency=1024"'
    code = code.replace("docs/examples", str(DOCS / "examples")).replace('20000"', shorter)
    if "labrl.sweep(" in code:  # starting processes takes seconds
        code = code.replace('4000"', f'1024", "meta.eval_frequency=512", "{ONE_PROCESS}"')
    scope: dict[str, object] = {}
    exec(code, scope)
    result = scope.get("result")
    if isinstance(result, labrl.TrialResult | labrl.SweepResult):
        assert result.exit_code == 0


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs generate them."""
    titles = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title)).lower() for title in titles]
    return {re.sub(r"[ -]+", "-", title.strip()) for title in plain}


FILES = [
    *(DOCS / page for page in PAGES),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "AGENTS.md",
    ROOT / "configs" / "README.md",
]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_link_resolves(file: Path) -> None:
    prose = re.sub(r"```.*?```", "", file.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve() if path else file
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in anchors(found), target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built site; a broken link is an error."""
    folder = tmp_path_factory.mktemp("site")
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed (dependency group docs)")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""},
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_site_opened_as_files_can_be_searched_and_requests_nothing_from_the_network(site: Path) -> None:
    """Regression test: the search was missing, because browsers start no workers on such pages."""
    requests: list[str] = []
    with chromium() as browser:
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "how-to" / "agents.html").as_uri())
        page.locator("input.md-search__input").press_sequentially("hindsight")
        page.wait_for_selector(".md-search-result__item", state="attached", timeout=60_000)
    assert not [url for url in requests if url.startswith("http")]


def test_figures_of_speed_in_readme_and_changelog_are_measurements() -> None:
    with (DOCS / "explanation" / "speed.csv").open(encoding="utf-8", newline="") as file:
        measured = {row["ratio"] for row in csv.DictReader(file)}
    for name in ("README.md", "CHANGELOG.md"):
        said = re.findall(r"(\d+\.\d+)\s+times", (ROOT / name).read_text(encoding="utf-8"))
        assert said
        assert set(said) <= measured, name


def test_every_page_is_listed_in_the_readme_of_its_folder() -> None:
    for kind in ("how-to", "explanation", "reference", "agents"):
        listed = set(re.findall(r"\]\(([\w-]+\.md)\)", text(f"{kind}/README.md")))
        assert listed >= {page.name for page in (DOCS / kind).glob("*.md")} - {"README.md"}


def test_commands_page_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    page = text("reference/commands.md")
    for name, program in PROGRAMS.items():
        assert f"`{name}" in page
        if name != "labrl":
            assert program(["--help"]) == 0
            options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
            assert all(option in page for option in options), name


@pytest.mark.parametrize("agent", ["penalty_ppo", "baseline_reinforce"])
def test_tutorial_shows_the_files_of_the_example_agents(agent: str) -> None:
    shown = re.findall(r"```(?:python|yaml)\n(.*?)```", text("tutorial/own-agent.md"), re.DOTALL)
    assert (DOCS / "examples" / f"{agent}.py").read_text() in shown
    assert (DOCS / "examples" / "agent" / f"{agent}.yaml").read_text() in shown


SMALL = ["agent.horizon=50", "agent.batch_size=50", "agent.network.torso.mlp.hidden=[8]", "env.num_envs=1"]


@pytest.mark.parametrize(
    ("overrides", "term"),
    [
        (["agent=baseline_reinforce", "env.num_envs=4"], None),
        (["agent=penalty_ppo", "preset=none", *SMALL], "agent.penalty_coef=0"),
        (["agent=rnd_ppo", "preset=none", *SMALL], "agent.novelty_coef=0"),
    ],
    ids=str,
)
def test_example_agent_resumes_exactly_and_its_term_changes_what_is_learned(
    overrides: list[str], term: str | None
) -> None:
    agent = ["--config-dir", str(DOCS / "examples"), *overrides, *QUIET, "seed=1"]
    assert cli.main([*agent, "env.max_frame=2800", "hydra.run.dir=runs/whole"]) == 0
    assert cli.main([*agent, "env.max_frame=1720", "hydra.run.dir=runs/parts"]) == 0
    assert cli.main(["+resume=runs/parts", "env.max_frame=2800"]) == 0
    assert differences(Path("runs/parts"), Path("runs/whole")) == []
    if term:
        assert cli.main([*agent, term, "env.max_frame=2800", "hydra.run.dir=runs/off"]) == 0
        assert differences(Path("runs/off"), Path("runs/whole"))


def test_example_callback_writes_its_log() -> None:
    overrides = ["--config-dir", str(DOCS / "examples"), "+callbacks=episode_log", "env.max_frame=4000"]
    assert cli.main([*overrides, *QUIET, "hydra.run.dir=run"]) == 0
    (log,) = Path("run").rglob("episodes.txt")
    frames = [int(line.split()[0]) for line in log.read_text().splitlines()]
    assert frames[-1] >= 4000
    assert len(frames) == 8
