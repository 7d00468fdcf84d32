"""Measures the bits that the model needs for each token, from each document's own start.

A document is predicted from the end-of-text id alone, never from another document. Every token is
scored exactly once. A document longer than the window is scored by one of three policies:

`overlapping`: each later window begins with `context_tokens` tokens that were scored before, so a
token far inside has at least that much context. `disjoint`: each later window begins with the one
token before it, and the last one reaches back to the full length; this is the rule of the language
model evaluation harness (`get_rolling_token_windows` with a context of 1). `whole`: there is one
window, and a document that does not fit is an error.

Windows are sorted by length and padded on the right, where causal attention never looks.

Bits are −log2 p in float64 from the model's own logits; divided by UTF-8 bytes they compare across
tokenizers. Cost: one forward over window / (window - context) times the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from llm_core.config import ConfigError
from llm_core.infer.cache.attention import any_length
from llm_core.infer.replicas import among_replicas
from llm_core.infer.scoring import token_logprobs
from llm_core.model.transformer import Transformer

# B batch (windows) · T token places of a window · N scored places of a batch

WindowPolicy = Literal["overlapping", "disjoint", "whole"]


@dataclass(frozen=True)
class Window:
    """Inputs [begin, end) of a document's shifted sequence, scored from `score_from` on."""

    document: int
    begin: int
    end: int
    score_from: int


def plan_windows(
    num_tokens: Sequence[int],
    window_tokens: int,
    context_tokens: int,
    policy: WindowPolicy = "overlapping",
) -> list[Window]:
    """Windows that score every token once; only `overlapping` has context_tokens.

    Raises ConfigError unless 0 <= context < window, and for a document longer than a window that is
    to hold the whole of it.
    """
    if policy == "whole" and (longest := max(num_tokens, default=0)) > window_tokens:
        raise ConfigError(
            f"windows (whole) need documents of at most window_tokens ({window_tokens}), and one"
            f" has {longest} tokens; set max_document_tokens={window_tokens}, or"
            " windows=overlapping"
        )
    if policy != "overlapping":
        context_tokens = 0
    if not 0 <= context_tokens < window_tokens:
        rule = f"must be at least 0 and less than the window of {window_tokens} tokens"
        raise ConfigError(f"context_tokens ({context_tokens}) {rule}; try {window_tokens // 2}")
    windows = []
    for document, count in enumerate(num_tokens):
        begin, scored = 0, 0
        while scored < count:
            end = min(begin + window_tokens, count)
            if policy == "disjoint":
                begin = max(0, end - window_tokens)
            windows.append(Window(document, begin, end, scored))
            scored, begin = end, end - context_tokens
    return windows


@among_replicas(np.asarray)
@torch.inference_mode()
def score_documents(
    model: Transformer,
    documents: Sequence[np.ndarray],
    start_id: int,
    window_tokens: int,
    context_tokens: int,
    batch_tokens: int,
    policy: WindowPolicy = "overlapping",
) -> list[np.ndarray]:
    """Bits (float64) of every token of every document, in the order given.

    start_id: the context of a document's first token.
    batch_tokens: token places of one forward pass, padding included; at least one window is taken.
    """
    bits = [np.zeros(len(tokens)) for tokens in documents]
    device = model.norm.weight.device
    lengths = [len(tokens) for tokens in documents]
    windows = plan_windows(lengths, window_tokens, context_tokens, policy)
    for batch in _batches(windows, batch_tokens):
        longest = batch[0].end - batch[0].begin
        inputs_BT = np.full((len(batch), longest), start_id, np.int64)
        targets_BT = np.full((len(batch), longest), -1, np.int64)
        for row, window in enumerate(batch):
            tokens, size = documents[window.document], window.end - window.begin
            # The shifted sequence is start_id, then the tokens: input i predicts token i.
            inputs_BT[row, max(0, 1 - window.begin) : size] = tokens[
                max(0, window.begin - 1) : window.end - 1
            ]
            skipped = window.score_from - window.begin
            targets_BT[row, skipped:size] = tokens[window.score_from : window.end]
        places_N = torch.from_numpy(np.flatnonzero(targets_BT >= 0)).to(device)
        targets_N = torch.from_numpy(targets_BT[targets_BT >= 0]).to(device)
        with any_length():
            hidden_BTD = model.hidden(torch.from_numpy(inputs_BT).to(device))
        nats, _ = token_logprobs(model, hidden_BTD.flatten(0, 1)[places_N], targets_N)
        scored = nats.cpu().numpy() / -math.log(2)
        begin = 0
        for window in batch:
            count = window.end - window.score_from
            bits[window.document][window.score_from : window.end] = scored[begin : begin + count]
            begin += count
    return bits


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Windows of similar length together; longest first, so that memory runs out early or never."""
    ordered = sorted(windows, key=lambda w: (w.begin - w.end, w.document, w.begin))
    begin = 0
    while begin < len(ordered):
        longest = ordered[begin].end - ordered[begin].begin
        size = max(1, batch_tokens // longest)
        yield ordered[begin : begin + size]
        begin += size
