"""Texts that are made to be slow are what they say, so that a fast figure means a fast search."""

from __future__ import annotations

import re

import numpy as np

from benchmarks.data.hostile import hostile_texts
from tasks.definitions.pii_kinds import TYPE_NAMES
from tasks.kernels.pii.spans import find_candidates
from tasks.pii.config import PiiConfig
from tasks.pii.spans import find_all_spans

FOUND = {
    "telephone numbers": ("PHONE", 0.2),
    "international ones": ("PHONE", 0.2),
    "numbers of any country": ("PHONE", 0.02),
    "e-mail addresses": ("EMAIL", 0.99),
    "cards": ("CARD", 0.99),
    "bank accounts": ("IBAN", 0.99),
    "social security numbers": ("NATIONAL_ID", 0.9),
    "tax ids": ("NATIONAL_ID", 0.99),
    "IPv4 addresses": ("IP", 0.6),
    "IPv6 addresses": ("IP", 0.9),
    "MAC addresses": ("MAC", 0.99),
    "keys": ("API_KEY", 0.99),
}
"""The least share of values that are found, of the first ones."""


def test_different_values_are_found_as_what_they_are() -> None:
    texts = {
        name.removeprefix("different "): text
        for name, text in hostile_texts(20_000)
        if name.startswith("different ")
    }
    for name, (kind, share) in FOUND.items():
        text = texts[name]
        spans = find_all_spans(text, np.array([0, len(text)], np.int64), PiiConfig())
        values = text.tobytes().splitlines()
        found = {
            text[start:end].tobytes()
            for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
        }
        assert {TYPE_NAMES[number] for number in np.unique(spans.types)} == {kind}, name
        assert len(found) >= share * len(values) and len(set(values)) > 0.9 * len(values), name


def test_nothing_that_a_candidate_calls_counts_references() -> None:
    """Counters are atomic, and two of them for each array of each call were three quarters of the
    time."""
    find_all_spans(np.zeros(8, np.uint8), np.array([0, 8], np.int64), PiiConfig())
    (compiled,) = find_candidates.overloads.values()
    module = str(
        compiled.library._get_module_for_linking()
    )  # `get_llvm_str` is empty where the code was on disk
    functions = re.split(r"^define [^@]*@", module, flags=re.MULTILINE)[1:]
    counting = [
        function.split("(")[0]
        for function in functions
        if re.search(r"call .*@NRT_(in|de)cref", function)
    ]
    assert len(functions) > 20
    assert all("find_candidates" in name or "_grown" in name for name in counting), counting
