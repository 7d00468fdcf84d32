"""Turns items of a suite into token ids: shots, the question, and the border before each answer.

The border is where the tokens of prompt and answer together first differ from those of the prompt
alone, never the sum of both: a tokenizer may merge the end of a prompt with the beginning of an
answer. White space at the end of a prompt belongs to the answer, as in lm-eval. What is too long
loses tokens on the left, after the start of the text, and never of the answer.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llm_core.config import ConfigError
from llm_core.infer.score_plan import Continuation
from tasks.evaluation.generate import begin
from tasks.evaluation.suites import LETTERS, Suite, SuiteItem

if TYPE_CHECKING:
    from tasks.tokenizer.encoder import Tokenizer


@dataclass(frozen=True)
class Encoded:
    """A prompt with one answer, as ids."""

    continuation: Continuation
    is_merged: bool
    """Whether a token crosses the border, so that scoring begins before the answer."""
    is_truncated: bool


def prompt_of(suite: Suite, item: SuiteItem, num_shots: int, seed: int) -> str:
    """What a model is given for an item: solved others, then its question."""
    shown = [
        question_of(suite, shot)
        + stem_of(shot, shot.label or 0)
        + suite.file.delimiter
        + _solution(suite, shot)
        for shot in choose_shots(suite, item, num_shots, seed)
    ]
    return suite.file.separator.join([*shown, question_of(suite, item)])


def messages_of(suite: Suite, item: SuiteItem, num_shots: int, seed: int) -> list[dict[str, str]]:
    """The same as a chat: each shot is a question and its answer, and the item's question is
    last."""
    found = []
    for shot in choose_shots(suite, item, num_shots, seed):
        answer = stem_of(shot, shot.label or 0) + suite.file.delimiter + _solution(suite, shot)
        found.append({"role": "user", "content": question_of(suite, shot)})
        found.append({"role": "assistant", "content": answer.strip()})
    return [*found, {"role": "user", "content": question_of(suite, item)}]


def choose_shots(suite: Suite, item: SuiteItem, num_shots: int, seed: int) -> list[SuiteItem]:
    """The same ones for all items, so that prompts begin alike; the next one stands in where an
    item would be shown its own solution."""
    if not num_shots:
        return []
    drawn = (suite.shots[place] for place in _order(len(suite.shots), seed))
    others = (shot for shot in drawn if shot.question != item.question)
    chosen = list(itertools.islice(others, num_shots))
    if len(chosen) < num_shots:
        raise ConfigError(
            f"suite {suite.name} has {len(suite.shots)} items, too few for {num_shots} shots before"
            f" item {item.id}; lower evaluate.shots"
        )
    return chosen


@functools.lru_cache(8)
def _order(count: int, seed: int) -> Sequence[int]:
    return random.Random(seed).sample(range(count), count)


def question_of(suite: Suite, item: SuiteItem) -> str:
    """The question, with its choices where their letters are the answers."""
    if not _has_letters(suite):
        return item.question
    listed = zip(LETTERS, item.choices, strict=False)
    lines = [f"{letter}. {choice}" for letter, choice in listed]
    return "\n".join([item.question, *lines, suite.file.unconditional])


def choice_texts(suite: Suite, item: SuiteItem) -> Sequence[str]:
    """The choices as a model would write them."""
    return LETTERS[: len(item.choices)] if _has_letters(suite) else item.choices


def _solution(suite: Suite, item: SuiteItem) -> str:
    return item.references[0] if item.label is None else choice_texts(suite, item)[item.label]


def stem_of(item: SuiteItem, choice: int) -> str:
    """What stands between the question and a choice, and is not scored."""
    return item.stems[choice] if item.stems else ""


def _has_letters(suite: Suite) -> bool:
    return suite.file.kind == "choices" and suite.file.form == "letters"


def encode_answer(
    tokenizer: Tokenizer, prompt: str, answer: str, window_tokens: int, where: str
) -> Encoded:
    """The ids of `prompt` and `answer` together. where: names the item in errors.

    Raises ConfigError for an answer that has no token, or does not fit the window.
    """
    read, ids, is_merged = _cut(tokenizer, prompt.rstrip(), prompt + answer, where)
    return _fitted(tokenizer, begin(tokenizer, read), ids, is_merged, window_tokens, where)


def encode_reply(
    tokenizer: Tokenizer,
    chat: Sequence[int],
    stem: str,
    answer: str,
    window_tokens: int,
    where: str,
) -> Encoded:
    """The ids of a chat, its start included, and of a reply, the text of stem and answer. No token
    joins both: a model writes a reply after the last token of the chat. Errors are those of
    `encode_answer`."""
    read, ids, is_merged = _cut(tokenizer, stem.strip(), (stem + answer).strip(), where)
    return _fitted(tokenizer, [*chat, *read], ids, is_merged, window_tokens, where)


def _cut(
    tokenizer: Tokenizer, before: str, text: str, where: str
) -> tuple[list[int], list[int], bool]:
    """The ids of `text` that those of `before` begin with, the others, and whether a token crosses
    the end of `before`."""
    alone, whole = tokenizer.encode(before).tolist(), tokenizer.encode(text).tolist()
    pairs = itertools.zip_longest(alone, whole)
    border = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    border = min(border, len(whole) - 1)
    if border < 0:
        raise ConfigError(f"{where} has an answer without a token; fix or remove it")
    return whole[:border], whole[border:], border < len(alone)


def _fitted(
    tokenizer: Tokenizer,
    context: list[int],
    ids: list[int],
    is_merged: bool,
    window_tokens: int,
    where: str,
) -> Encoded:
    # The last token is predicted and not read, so a sequence has one more than the window.
    room, num_start = window_tokens + 1 - len(ids), len(tokenizer.start_ids)
    if room < max(1, num_start):
        raise ConfigError(
            f"{where} has an answer of {len(ids)} tokens, and the window of {window_tokens} has no"
            " room for it; raise evaluate.window_tokens, or remove the item"
        )
    is_truncated = len(context) > room
    if is_truncated:
        context = context[:num_start] + context[len(context) - room + num_start :]
    continuation = Continuation((*context, *ids), len(context))
    return Encoded(continuation, is_merged, is_truncated)


def prompt_digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]
