"""What is wrong in YAML of the user's own is told with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from labrl.config.compose import compose, resolve
from labrl.errors import InputError

BASE = "defaults:\n  - gymnasium\n  - _self_\n"
BROKEN = [
    ("env", "name: a\n  id: b\n", r"mine\.yaml, line 2: mapping values are not allowed here"),
    ("env", f"{BASE}id: A-v1\nid: B-v1\n", r"mine\.yaml, line 5: found duplicate key id"),
    ("env", f"{BASE}\tid: A-v1\n", r"mine\.yaml, line 4: found character '\\t'"),
    ("agent", "- a\n- b\n", r"mine\.yaml: it holds a list, and must hold keys"),
    ("env", "just text\n", r"mine\.yaml: it holds a value"),
    ("agent", "# nothing yet\n", r"mine\.yaml: it holds nothing"),
    ("env", "defaults:\n  - mine\n", r"mine\.yaml: its defaults lead back to itself"),
    ("env", "name: x\nid: CartPole-v1\n", r"env: it has no _target_\..*defaults: \[gymnasium"),
]


def own(folder: Path, group: str, content: bytes, name: str = "mine") -> Path:
    (folder / group).mkdir(parents=True, exist_ok=True)
    (folder / group / f"{name}.yaml").write_bytes(content)
    return folder


@pytest.mark.parametrize(("group", "content", "said"), BROKEN)
def test_a_broken_file_is_named_with_its_line(group: str, content: str, said: str, tmp_path: Path) -> None:
    folder = own(tmp_path, group, content.encode())
    with pytest.raises(InputError, match=said):
        resolve(compose([f"{group}=mine", "meta=dev"], folder))


def test_a_file_on_which_another_builds_is_looked_at_too(tmp_path: Path) -> None:
    folder = own(tmp_path, "env", b"a: [\n", "base")
    own(folder, "env", b"defaults:\n  - base\n  - _self_\n")
    own(folder, "experiment", b"# @package _global_\ndefaults:\n  - override /env: mine\n", "recipe")
    for word in ("env=mine", "experiment=recipe"):
        with pytest.raises(InputError, match=r"env/base\.yaml, line 2"):
            compose([word], folder)


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"mine\.yaml: its byte 6 is no UTF-8"):
        compose(["env=mine"], own(tmp_path, "env", b"name: \xff\n"))


def test_files_that_are_not_chosen_are_left_alone(tmp_path: Path) -> None:
    folder = own(tmp_path, "env", b"a: [\n", "broken")
    own(folder, "env", f"{BASE}id: CartPole-v1\nname: mine\n".encode())
    assert resolve(compose(["env=mine"], folder)).env.config.name == "mine"
