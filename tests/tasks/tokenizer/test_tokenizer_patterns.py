"""Patterns of tokenizers end in reasonable time on any text, or are refused before they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llm_core.config import ConfigError
from tasks.runtime.code import ROOT
from tasks.tokenizer.importing import import_tokenizer
from tasks.tokenizer.patterns import BadPattern, check_pattern, check_tokenizer

LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
PUBLISHED = {
    "GPT-2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "GPT-4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+"
    ),
    "GPT-4o": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{LETTERS}*[\p{{Ll}}\p{{M}}]+(?i:'s|'t|'re)?|\p{{N}}{{1,3}}|{OTHERS}"
    ),
    "Llama 3": (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{OTHERS}"
    ),
    "Mistral": (
        rf"[^\r\n\p{{L}}\p{{N}}]?((?=[\p{{L}}])([^a-z]))*((?=[\p{{L}}])([^A-Z]))+|\p{{N}}|{OTHERS}"
    ),
    "DeepSeek": (
        rf"{SIGNS}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{OTHERS}"
    ),
    "Han": r"[\p{Han}&&[^\p{N}]]+|[一-龥぀-ゟ゠-ヿ]+",
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "digits": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
}
HOSTILE = [
    *(
        "(a+)+$",
        "(a|aa)+$",
        "(.*)*x",
        r"^(a|a?)+\1$",
        "((a{1,1000}){1,1000}){1,1000}",
        "(a|a)*b",
        "(a?b?)*c",
        "(?:a*)*",
    ),
    *(
        "(a+){2,5}",
        "a**",
        "a{1,3}+b",
        "(x+x+)+y",
        r"(\w|\d)+$",
        "(.|a)+b",
        "(?:(?>a+)|a+)+b",
        r"(?=(a+)+$)x",
        r"(?<n>a)\k<n>",
    ),
    *(
        r"\g<0>",
        "(?~x)",
        "(?x)a # (\n+",
        r"\s*\s*\s*\s*\s*x",
        "a{100000}",
        "(" * 5000 + ")" * 5000,
        "a" * 20_000,
        "(a",
        "a)",
        "[a",
    ),
]


def described(pattern: str = "a", **parts: Any) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    token = {
        "id": 0,
        "content": "<|endoftext|>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
    }
    model = {"type": "BPE", "vocab": {"<|endoftext|>": 0, "a": 1}, "merges": []}
    return {
        "version": "1.0",
        "added_tokens": [token | {"special": True}],
        "pre_tokenizer": split,
        "model": model,
        **parts,
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_patterns_of_published_tokenizers_are_accepted(name: str) -> None:
    check_pattern(PUBLISHED[name])


@pytest.mark.parametrize("pattern", HOSTILE)
def test_patterns_that_may_take_forever_are_one_line(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(BadPattern):
        check_pattern(pattern)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(described(pattern)))
    with pytest.raises(
        ConfigError, match=r"tokenizer\.json\): (the|a) pattern .*; give a tokenizer without it"
    ) as caught:
        import_tokenizer(file, None, None)
    assert len(str(caught.value)) < len(str(file)) + 250


@pytest.mark.parametrize("place", ["normalizer", "pre_tokenizer", "decoder", "post_processor"])
def test_patterns_are_found_wherever_they_are(place: str) -> None:
    inner = {
        "type": "Sequence",
        "parts": [{"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}],
    }
    with pytest.raises(BadPattern):
        check_tokenizer(described(**{place: inner}))


@pytest.mark.parametrize("id", [2**32 - 1, 1 << 24, -1, 1.5, "1", None])
def test_ids_beyond_any_vocabulary_are_one_line(id: Any) -> None:
    with pytest.raises(ValueError, match="is not a whole number up to"):
        check_tokenizer(described(model={"type": "BPE", "vocab": {"a": id}, "merges": []}))
    with pytest.raises(ValueError, match="is not a whole number up to"):
        check_tokenizer(described(added_tokens=[{"id": id, "content": "x"}]))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 50_000, '{"version": ' + "9" * 5000 + "}", "[]", "\x00"]
)
def test_json_that_is_not_read_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json\) "):
        import_tokenizer(tmp_path, None, None)


SPLIT = """
import json, resource, sys
from tokenizers import Regex, pre_tokenizers
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
for pattern in json.loads(sys.stdin.read()):
    print(pattern, flush=True)
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception as error:  # the library's own class for patterns that it refuses
        if type(error) is not Exception:
            raise
        continue
    for text in ("a" * 60 + "!", "ab" * 30 + "!", "a b" * 30 + "!"):  # the library gives up in a panic, which is not an Exception
        split.pre_tokenize_str(text)
"""  # noqa: E501

ATOMS = st.sampled_from(["a", "b", "[ab]", ".", r"\w", " ", "aa", "^", "$"])
TIMES = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,3}", "++", "*?", "?+"])
OPENINGS = st.sampled_from(["(", "(?:", "(?>", "(?=", "(?!"])
PATTERNS = st.recursive(
    st.tuples(ATOMS, TIMES).map("".join),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(
            OPENINGS, st.lists(inner, min_size=1, max_size=2).map("|".join), st.just(")"), TIMES
        ).map("".join),
    ),
    max_leaves=8,
)


@settings(max_examples=8)
@example(HOSTILE[:16])
@given(st.lists(PATTERNS, min_size=40, max_size=40, unique=True))
def test_patterns_that_are_accepted_end_in_time(patterns: list[str]) -> None:
    accepted = []
    for pattern in patterns:
        try:
            check_pattern(pattern)
            accepted.append(pattern)
        except BadPattern:
            continue
    done = subprocess.run(
        [sys.executable, "-c", SPLIT],
        input=json.dumps(accepted),
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.stderr[-200:]}"
