"""What is wrong in a user's own YAML is refused with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused

from labrl.config.compose import compose, resolve
from labrl.errors import Code

BASE = "defaults:\n  - gymnasium\n  - _self_\n"
BROKEN: list[tuple[str, str, Code, str]] = [
    ("env", "name: a\n  id: b\n", "syntax", "line 2"),
    ("env", f"{BASE}id: A-v1\nid: B-v1\n", "syntax", "line 5"),
    ("env", f"{BASE}\tid: A-v1\n", "syntax", "line 4"),
    ("agent", "- a\n- b\n", "type", "name: value"),
    ("env", "just text\n", "type", "name: value"),
    ("agent", "# nothing yet\n", "type", "name: value"),
    ("env", "defaults:\n  - mine\n", "contradiction", "mine.yaml -> "),
]


def own(folder: Path, group: str, content: bytes, name: str = "mine") -> Path:
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.yaml").write_bytes(content)
    return folder


@pytest.mark.parametrize(("group", "content", "code", "named"), BROKEN)
def test_a_broken_file_is_named_with_its_line(
    group: str, content: str, code: Code, named: str, tmp_path: Path
) -> None:
    folder = own(tmp_path, group, content.encode())
    with refused(code, folder / group / "mine.yaml", named):
        resolve(compose([f"{group}=mine", "meta=dev"], folder))


def test_a_file_without_a_target_is_shown_on_what_to_build(tmp_path: Path) -> None:
    folder = own(tmp_path, "env", b"name: x\nid: CartPole-v1\n")
    with refused("missing", "env._target_", "defaults: [gymnasium"):
        resolve(compose(["env=mine", "meta=dev"], folder))


def test_a_file_on_which_another_builds_is_looked_at_too(tmp_path: Path) -> None:
    folder = own(tmp_path, "env", b"a: [\n", "base")
    own(folder, "env", b"defaults:\n  - base\n  - _self_\n")
    own(folder, "experiment", b"# @package _global_\ndefaults:\n  - override /env: mine\n", "recipe")
    for word in ("env=mine", "experiment=recipe"):
        with refused("syntax", folder / "env" / "base.yaml", "line 2"):
            compose([word], folder)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    with refused("syntax", tmp_path / "env" / "mine.yaml", "byte 6", "UTF-8"):
        compose(["env=mine"], own(tmp_path, "env", b"name: \xff\n"))


def test_files_that_are_not_chosen_are_left_alone(tmp_path: Path) -> None:
    folder = own(tmp_path, "env", b"a: [\n", "broken")
    own(folder, "env", f"{BASE}id: CartPole-v1\nname: mine\n".encode())
    assert resolve(compose(["env=mine"], folder)).env.config.name == "mine"
