"""Scores the items of suites with a model: one row for each, from which every figure follows
(`tasks.evaluation.suite_results`).

A part is a range of items of one suite, so that a killed evaluation resumes at the missing range.
Log-probabilities are rounded, so in float64 batches do not change them; in float32 they change the
last digits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.generation import generate
from llm_core.infer.scoring import score_continuations
from tasks.evaluation.config import EvaluateConfig
from tasks.evaluation.generate import begin
from tasks.evaluation.prompts import (
    Encoded,
    choice_texts,
    encode_answer,
    encode_reply,
    messages_of,
    prompt_digest,
    prompt_of,
    stem_of,
)
from tasks.evaluation.suites import Suite, SuiteItem
from tasks.tokenizer.text_stream import TextStream

if TYPE_CHECKING:
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.chat_template import ChatTemplate
    from tasks.tokenizer.encoder import Tokenizer

LOGPROB_DIGITS = 6
"""Of the log-probability of an answer, in nats."""

CHOICE = pa.struct(
    [
        ("logprob", pa.float64()),
        ("unconditional", pa.float64()),
        ("tokens", pa.int32()),
        ("chars", pa.int32()),
        ("bytes", pa.int32()),
        ("is_merged", pa.bool_()),
        ("is_greedy", pa.bool_()),
    ]
)
"""One answer: its log-probability in nats after the prompt, and after the unconditional context;
whether each of its tokens is the most probable one."""
ROWS = pa.schema(
    [
        ("suite", pa.string()),
        ("item", pa.string()),
        ("cluster", pa.string()),
        ("prompt_digest", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("prompt_ids", pa.list_(pa.int32())),
        ("is_truncated", pa.bool_()),
        ("label", pa.int32()),
        ("choices", pa.list_(CHOICE)),
        ("references", pa.list_(pa.string())),
        ("answer", pa.string()),
        ("answer_tokens", pa.int32()),
        ("is_cut_off", pa.bool_()),
    ]
)


def score_items(
    model: Transformer,
    tokenizer: Tokenizer,
    suite: Suite,
    items: Sequence[SuiteItem],
    window_tokens: int,
    config: EvaluateConfig,
    ends: Sequence[int],
    template: ChatTemplate | None = None,
) -> list[dict[str, Any]]:
    """A row of `ROWS` for each item. ends: ids that end a generated answer. template: of the chat
    that items are asked in; None: in plain text. Raises ConfigError for an answer that fits no
    window."""
    shots = suite.file.shots if config.shots is None else config.shots
    if template is None:
        prompts = [prompt_of(suite, item, shots, config.seed) for item in items]
        chats = None
    else:
        messages = [messages_of(suite, item, shots, config.seed) for item in items]
        prompts = [json.dumps(each, ensure_ascii=False) for each in messages]
        chats = [template.encode(each) for each in messages]
    if suite.file.kind == "generation":
        rows = _generate(model, tokenizer, suite, prompts, chats, window_tokens, ends)
    else:
        rows = _choose(model, tokenizer, suite, items, prompts, chats, window_tokens, config)
    for row, item, prompt in zip(rows, items, prompts, strict=True):
        row |= {"suite": suite.name, "item": item.id, "cluster": item.cluster}
        row |= {"prompt_digest": prompt_digest(prompt), "label": item.label}
        row |= {"references": list(item.references)}
    return rows


def _choose(
    model: Transformer,
    tokenizer: Tokenizer,
    suite: Suite,
    items: Sequence[SuiteItem],
    prompts: Sequence[str],
    chats: Sequence[list[int]] | None,
    window_tokens: int,
    config: EvaluateConfig,
) -> list[dict[str, Any]]:
    delimiter, free = suite.file.delimiter, suite.file.unconditional
    encoded, alone = [], []

    def encode(number: int, stem: str, text: str, where: str) -> Encoded:
        if chats is None:
            prompt = prompts[number] + stem
            return encode_answer(tokenizer, prompt, delimiter + text, window_tokens, where)
        chat = chats[number]
        return encode_reply(tokenizer, chat, stem, delimiter + text, window_tokens, where)

    for number, item in enumerate(items):
        where, texts = f"suite {suite.name}, item {item.id}", choice_texts(suite, item)
        encoded.append(
            [encode(number, stem_of(item, n), text, where) for n, text in enumerate(texts)]
        )
        # One answer has nothing to be compared with.
        compared = texts if suite.file.kind == "choices" else ()
        alone.append(
            [encode_answer(tokenizer, free, delimiter + t, window_tokens, where) for t in compared]
        )
    groups = [[answer.continuation for answer in answers] for answers in (*encoded, *alone)]
    found = score_continuations(model, groups, config.batch_tokens)
    scores = [
        [round(float(each.logprobs.sum()), LOGPROB_DIGITS) for each in group] for group in found
    ]
    rows = []
    for number, (item, answers) in enumerate(zip(items, encoded, strict=True)):
        shortest = min((each.continuation for each in answers), key=lambda each: each.begin)
        texts = choice_texts(suite, item)
        free_scores: list[float | None] = [*scores[len(items) + number]]
        choices = [
            {
                "logprob": logprob,
                "unconditional": unconditional,
                "tokens": len(answer.continuation.ids) - answer.continuation.begin,
                "chars": len(text),
                "bytes": len(text.encode()),
                "is_merged": answer.is_merged,
                "is_greedy": score.is_greedy,
            }
            for text, answer, score, logprob, unconditional in zip(
                texts,
                answers,
                found[number],
                scores[number],
                free_scores or [None] * len(texts),
                strict=True,
            )
        ]
        rows.append(
            {
                "prompt_tokens": shortest.begin,
                "prompt_ids": shortest.ids[: shortest.begin],
                "is_truncated": any(answer.is_truncated for answer in answers),
                "choices": choices,
            }
        )
    return rows


def _generate(
    model: Transformer,
    tokenizer: Tokenizer,
    suite: Suite,
    prompts: Sequence[str],
    chats: Sequence[list[int]] | None,
    window_tokens: int,
    ends: Sequence[int],
) -> list[dict[str, Any]]:
    limit = min(suite.file.max_new_tokens, window_tokens - 1)
    num_start = len(tokenizer.start_ids)
    room = max(window_tokens - limit, num_start + 1)
    begun, truncated = [], []
    plain = (begin(tokenizer, tokenizer.encode(prompt).tolist()) for prompt in prompts)
    for ids in plain if chats is None else chats:
        truncated.append(len(ids) > room)
        if truncated[-1]:
            ids = ids[:num_start] + ids[len(ids) - room + num_start :]
        begun.append(ids)
    found = generate(model, begun, GREEDY, [limit] * len(begun), ends)
    rows = []
    for ids, answer, is_truncated in zip(begun, found, truncated, strict=True):
        stream = TextStream(tokenizer, ids[num_start:], suite.file.stop)
        text = stream.add(answer) + stream.end()
        rows.append(
            {
                "prompt_tokens": len(ids),
                "prompt_ids": ids,
                "is_truncated": is_truncated,
                "choices": [],
                "answer": text.strip(),
                "answer_tokens": len(answer),
                "is_cut_off": stream.stop is None and len(answer) == limit,
            }
        )
    return rows


def write_rows(rows: Sequence[dict[str, Any]], file: Path) -> None:
    from tasks.corpus.documentset import write_table

    write_table(pa.Table.from_pylist(list(rows), ROWS), file)
