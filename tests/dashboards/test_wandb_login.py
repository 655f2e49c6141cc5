"""Tests of the W&B mode, which follows from the configuration, W&B's own settings, and a login."""

from __future__ import annotations

from pathlib import Path

import pytest
from options import options
from wandb_cases import forget_user

from labrl.config.compose import compose, resolve
from labrl.dashboards.sender import has_login, resolve_mode
from labrl.errors import InputError


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_user(monkeypatch, tmp_path)
    monkeypatch.chdir(tmp_path)


def mode(**changes: str) -> str:
    """Return how a run with these changes of the configuration is sent."""
    return resolve_mode(options("wandb", **changes))[0]


def test_auto_is_off_without_a_login_and_online_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mode() == "disabled"
    monkeypatch.setenv("WANDB_API_KEY", "k")
    assert mode() == "online"


def test_auto_follows_wandb_mode_and_a_configured_mode_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k")
    for variable, expected in (("dryrun", "offline"), ("disabled", "disabled"), ("online", "online")):
        monkeypatch.setenv("WANDB_MODE", variable)
        assert mode() == expected
        assert mode(mode="offline") == "offline"
    assert mode(mode="disabled") == "disabled"


@pytest.mark.parametrize(("place", "own"), [(".config/wandb", "offline"), ("wandb", "disabled")])
def test_auto_follows_the_settings_of_wandb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, own: str
) -> None:
    """Regression test: a run that W&B's settings disabled was announced as online."""
    monkeypatch.setenv("WANDB_API_KEY", "k")
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "settings").write_text(f"[default]\nmode = {own}\n")
    assert mode() == own
    (tmp_path / place / "settings").write_text("mode")
    assert mode() == "online"


def test_login_is_an_api_key_for_the_server_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine elsewhere.org\n  login user\n  password k\n")
    assert not has_login()
    netrc.write_text("machine api.wandb.ai\n  login user\n  password k\n")
    assert has_login()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    assert not has_login()
    monkeypatch.delenv("WANDB_BASE_URL")
    netrc.write_text("machine api.wandb.ai login")
    assert not has_login()


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("wandb.project=a/b", "wandb.project"),
        ("wandb.tags=['']", "wandb.tags[0]"),
        ("wandb.artifacts=[model]", "wandb.artifacts[0]"),
    ],
)
def test_values_that_wandb_would_reject_are_refused_before_the_run(override: str, key: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve(compose([override]))
    assert [mistake.key for mistake in refused.value.mistakes] == [key]
