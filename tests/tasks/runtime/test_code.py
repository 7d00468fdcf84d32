"""The digest of a stage's code: it changes with what the stage can run, and with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_core.private_folder import cache_folder
from tasks.runtime import code
from tasks.runtime.code import code_digest, reached_definitions

FILES = {
    "tasks/__init__.py": "",
    "tasks/kernels/__init__.py": "def inner(f): return f\n",
    "tasks/stage_a.py": (
        "def run():\n    from tasks.kernels import words\n    return words.count()\n"
    ),
    "tasks/kernels/words.py": (
        "from .chars import fold\ndef count(): return fold()\ndef other(): return 5\n"
    ),
    "tasks/kernels/chars.py": "LIMIT = 7\ndef fold(): return LIMIT\n",
    "tasks/unrelated.py": "x = 1\n",
}
Write = Callable[..., str]


def path_of(name: str) -> str:
    """`kernels_in_chars` → `tasks/kernels/chars.py`."""
    return f"tasks/{name.replace('_in_', '/')}.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache_folder.cache_clear()


@pytest.fixture
def digest_of(tmp_path: Path) -> Write:
    """Write a source tree, some files of it changed, and give the digest of its stage."""

    def write(**changed: str) -> str:
        for name, text in (FILES | {path_of(name): text for name, text in changed.items()}).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return code_digest(["tasks.stage_a"], root=tmp_path)

    return write


def test_an_edited_function_or_constant_changes_the_code_of_stages_that_reach_it(
    digest_of: Write,
) -> None:
    before = digest_of()
    assert digest_of() == before
    assert digest_of(kernels_in_chars="LIMIT = 8\ndef fold(): return LIMIT\n") != before
    assert digest_of(kernels_in_chars="LIMIT = 7\ndef fold(): return -LIMIT\n") != before


def test_an_edited_added_or_renamed_data_file_changes_the_code(tmp_path: Path) -> None:
    page, more, style = (tmp_path / name for name in ("pages/a.html", "pages/b/c.html", "a.css"))
    more.parent.mkdir(parents=True)
    style.write_text("")
    changes = (
        lambda: page.write_text("{{ title }}"),
        lambda: page.write_text("{{ heading }}"),
        lambda: style.write_text("p {}"),
        lambda: more.write_text(""),
        lambda: more.rename(more.with_name("d.html")),
    )
    seen: list[str] = []
    for change in changes:
        change()
        digests = [code_digest([], ["pages", "a.css"], tmp_path) for _ in range(2)]
        assert digests[0] == digests[1] and digests[0] not in seen
        seen.append(digests[0])


def test_a_data_file_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="data file"):
        code_digest([], ["pages"], tmp_path)


def test_what_a_stage_does_not_reach_is_no_part_of_its_code(digest_of: Write) -> None:
    before = digest_of()
    assert digest_of(unrelated="x = 2\n") == before
    words = FILES["tasks/kernels/words.py"]
    assert digest_of(kernels_in_words=words.replace("5", "6")) == before
    assert (
        digest_of(kernels_in_chars=FILES["tasks/kernels/chars.py"] + "def more(): return 1\n")
        == before
    )


def test_prose_and_layout_are_no_part_of_the_code(digest_of: Write) -> None:
    before = digest_of()
    chars = (
        '"""Folds."""\n\nLIMIT = 7  # of all\n"""A limit."""\n\ndef fold():\n    """Fold it."""\n  '
        "  return LIMIT\n"
    )
    assert digest_of(kernels_in_chars=chars) == before


def test_a_move_to_another_module_is_no_change(digest_of: Write) -> None:
    before = digest_of()
    moved = {
        "kernels_in_chars": "from tasks.limits import LIMIT\ndef fold(): return LIMIT\n",
        "limits": "LIMIT = 7\n",
        "stage_a": FILES["tasks/stage_a.py"].replace("tasks.kernels", "tasks.loops"),
        "loops_in_words": FILES["tasks/kernels/words.py"].replace(".chars", "tasks.kernels.chars"),
        "loops_in___init__": FILES["tasks/kernels/__init__.py"],
    }
    assert digest_of(**moved) == before


def test_a_call_at_import_is_code_of_all_that_reaches_its_module(digest_of: Write) -> None:
    before = digest_of()
    package = FILES["tasks/kernels/__init__.py"]
    assert digest_of(kernels_in___init__=package + "print(1)\n") != before
    assert digest_of(kernels_in_chars="print(2)\n" + FILES["tasks/kernels/chars.py"]) != before


@pytest.mark.parametrize(
    "text",
    [
        "from tasks.kernels.chars import fold as f\ndef run(): return f()\n",
        "import tasks.kernels.chars as c\ndef run(): return c.fold()\n",
        "from tasks.kernels import chars\nclass Stage:\n    def run(self): return chars.fold()\n",
        (
            "try:\n    from tasks.kernels.chars import fold\nexcept ImportError:\n    fold ="
            " None\ndef run(): return fold()\n"
        ),
        "from tasks.kernels.words import fold\ndef run(): return fold()\n",
        (
            "def run(x=__import__, *, y: 'fold' = 1):\n    from tasks.kernels.words import count as"
            " c\n    return c()\n"
        ),
        (
            "from tasks.kernels.chars import fold\nTABLE = {'a': fold}\ndef run(): return"
            " TABLE['a']()\n"
        ),
    ],
)
def test_every_kind_of_import_and_reference_is_followed(
    text: str, digest_of: Write, tmp_path: Path
) -> None:
    before = digest_of(stage_a=text)
    assert ("tasks.kernels.chars", "fold") in reached_definitions(["tasks.stage_a"], tmp_path)
    assert digest_of(stage_a=text, kernels_in_chars="LIMIT = 7\ndef fold(): return 1\n") != before


def test_a_damaged_cache_is_read_again_from_sources(digest_of: Write, tmp_path: Path) -> None:
    before = digest_of()
    (file,) = (tmp_path / "cache" / "textmill" / "code").glob("*.json")
    file.write_text("{")
    code._tables.cache_clear()
    assert digest_of() == before
