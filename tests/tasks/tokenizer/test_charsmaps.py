"""A damaged table of replacements is told before the library that would panic over it sees it."""

from __future__ import annotations

import base64
import importlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from llm_core.config import ConfigError
from tasks.tokenizer.charsmaps import damaged_charsmap
from tasks.tokenizer.importing import import_tokenizer


@cache
def sound_table() -> bytes:
    """What sentencepiece writes for NFKC."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b ab ba"] * 9),
        model_writer=model,
        vocab_size=8,
        normalization_rule_name="nfkc",
        minloglevel=2,
    )
    proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    described = proto.ModelProto()
    described.ParseFromString(model.getvalue())
    return bytes(described.normalizer_spec.precompiled_charsmap)


def normalizer(table: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def tokenizer_json(table: bytes) -> str:
    described = json.loads(Tokenizer(models.BPE({"a": 0, "<|endoftext|>": 1}, [])).to_str())
    return json.dumps(
        described | {"normalizer": {"type": "Sequence", "normalizers": [normalizer(table)]}}
    )


def test_a_table_of_sentencepiece_is_sound() -> None:
    assert damaged_charsmap(normalizer(sound_table())) is None
    assert Tokenizer.from_str(tokenizer_json(sound_table())).normalizer.normalize_str("ﬁ①") == "fi1"


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"\1\0",
        b"\xff" * 4,
        b"\4\0\0\0",
        b"\4\0\0\0\1\2\3\4",
        b"\0\0\0\0",
        b"\4\0\0\0\0\4\0\0\xff",
    ],
    ids=repr,
)
def test_a_damaged_table_is_a_clear_error(tmp_path: Path, table: bytes) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(table), "utf-8")
    with pytest.raises(ConfigError, match=r"tokenizer\.json\) has a damaged precompiled_charsmap"):
        import_tokenizer(tmp_path, None, None)


def test_a_normalizer_that_is_none_is_a_clear_error(tmp_path: Path) -> None:
    described = json.loads(tokenizer_json(sound_table())) | {"normalizer": {"type": "Replace"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(described), "utf-8")
    with pytest.raises(ConfigError, match="is not a tokenizer that `tokenizers` reads"):
        import_tokenizer(tmp_path, None, None)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=40),
    st.text(max_size=40),
)
def test_no_text_panics_over_a_table_that_counts_as_sound(
    damage: list[tuple[int, int]], text: str
) -> None:
    table = bytearray(sound_table())
    for place, byte in damage:
        table[place % len(table)] = byte
    if damaged_charsmap(normalizer(bytes(table))) is None:
        Tokenizer.from_str(tokenizer_json(bytes(table))).normalizer.normalize_str(text + "ﬁ①")
