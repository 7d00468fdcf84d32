"""Conversations whose texts look like control tokens, and templates that are loaded for them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tasks.tokenizer.chat_template import ChatTemplate
from tasks.tokenizer.encoder import Tokenizer, load_tokenizer
from tests.support.data.foreign_tokenizers import CONTROLS

checked = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FRAGMENTS = sorted(
    {control[:n] for control in CONTROLS for n in range(1, len(control) + 1)}
    | {control[n:] for control in CONTROLS for n in range(1, len(control))}
)
hostile = st.lists(st.sampled_from([*FRAGMENTS, *CONTROLS, " ", "好", "the"]), max_size=6).map(
    "".join
)


def loaded(folder: Path, template: str) -> tuple[ChatTemplate, Tokenizer]:
    tokenizer = load_tokenizer(folder)
    return ChatTemplate(template, folder, tokenizer), tokenizer


def conversation(*texts: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]


_LOADED: dict[tuple[Path, str], tuple[ChatTemplate, Tokenizer]] = {}


def loaded_once(folder: Path, template: str) -> tuple[ChatTemplate, Tokenizer]:
    if (folder, template) not in _LOADED:
        _LOADED[folder, template] = loaded(folder, template)
    return _LOADED[folder, template]
