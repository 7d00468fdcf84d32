"""What is remembered of input files: as long as they are the same, and no longer."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tasks.language import stage as language
from tasks.runtime.inputs import InputDigests, load_once
from tasks.scores import classifier, perplexity


def test_a_file_is_loaded_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    loads = []

    @load_once(2)
    def load(path: Path) -> str:
        loads.append(path.name)
        return path.read_text()

    files = [tmp_path / name for name in "abc"]
    for file in files:
        file.write_text("1")
    assert [load(files[0]), load(files[0]), load(files[1])] == ["1", "1", "1"] and loads == [
        "a",
        "b",
    ]
    files[0].write_text("2")
    os.utime(files[0], ns=(0, 1))
    assert load(files[0]) == "2" and loads == ["a", "b", "a"]
    assert load(files[2]) == "1" and load(files[1]) == "1" and loads == ["a", "b", "a", "c", "b"], (
        "the least used one goes"
    )


def test_models_that_users_give_are_looked_at_again() -> None:
    for load in (
        language._load_tree,
        language._load_predict,
        classifier._load_fasttext,
        perplexity._load_kenlm,
    ):
        assert not hasattr(load, "cache_info"), (
            "a cache by path alone takes the model that was there before"
        )


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_a_flipped_byte_in_the_memory_of_digests_gives_no_wrong_digest(
    place: int, bit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, memory = Path(folder) / "a.jsonl", Path(folder) / "memory.json"
        source.write_text("one")
        wanted = InputDigests(memory).of({"a": source})
        content = bytearray(memory.read_bytes())
        content[place % len(content)] ^= 1 << bit
        memory.write_bytes(content)
        assert InputDigests(memory).of({"a": source}) == wanted
