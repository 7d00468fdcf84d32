"""Measures a model of named entities for `pii.ner`: speed, recall and precision.

`python -m benchmarks.data.ner MODEL_DIR [COUNT]`: the model as the stage applies it, on COUNT (200)
invented sentences a language (`benchmarks.data.ner_sentences`, the holdout), ten to a document, on
one thread. A name, address or date is found where one span of its type covers it; a span that
touches none of its type is wrong. By type and language, with Wilson's interval of 95 %. Types that
the model has no label for are left out. The last line is one JSON object.

`python -m benchmarks.data.ner --train FOLDER` first trains a small model there, from a random start
on the training sentences (two layers, seeded, minutes of one core). What it then reaches measures
the machinery, not what a published model finds in texts that people write.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data.ner_sentences import HOLDOUT, LANGUAGES, TRAINING, sentences
from benchmarks.data.shares import share
from llm_core.printing import note, show
from tasks.definitions.pii_kinds import MODEL_TYPES, TYPE_NAMES
from tasks.pii.config import PiiConfig
from tasks.pii.ner_folder import known_types, model_files
from tasks.pii.ner_model import model_of
from tasks.pii.ner_spans import byte_offsets, entity_rows
from tasks.pii.spans import find_all_spans

Sentence = tuple[str, str, list[tuple[int, int, str]]]
TRAINING_SEED, HOLDOUT_SEED = 1, 2
SENTENCES_A_DOCUMENT = 10
LABELS = ("O", *(f"{place}-{kind}" for kind in MODEL_TYPES for place in "BI"), "B-DATE", "I-DATE")


def measure(config: PiiConfig, count: int) -> dict[str, Any]:
    """Recall and precision by type and language, documents and megabytes a second."""
    model = model_of(config, "measured")
    counts, num_bytes, num_documents, elapsed_s = Counter[tuple[str, str, str]](), 0, 0, 0.0
    model.tokens_of("warm up")
    for language in LANGUAGES:
        made = (s for s in sentences(count, HOLDOUT, HOLDOUT_SEED) if s[0] == language)
        texts, truths = [], []
        while group := list(islice(made, SENTENCES_A_DOCUMENT)):
            text, truth = _document(group)
            texts.append(text.encode())
            truths.append(truth)
        begins = np.cumsum([0, *map(len, texts)]).astype(np.int64)
        values = np.frombuffer(b"".join(texts), np.uint8)
        find_all_spans(values[: begins[1]], begins[:2], config)  # compiles
        begun = time.perf_counter()
        spans = find_all_spans(values, begins, config, partial(entity_rows, model=model))
        elapsed_s += time.perf_counter() - begun
        num_bytes, num_documents = num_bytes + len(values), num_documents + len(texts)
        for document, truth in enumerate(truths):
            inside = spans.documents == document
            found = [
                (int(start - begins[document]), int(end - begins[document]), TYPE_NAMES[kind])
                for start, end, kind in zip(
                    spans.starts[inside], spans.ends[inside], spans.types[inside], strict=True
                )
            ]
            _compare(found, truth, config.ner_types, language, counts)
    result: dict[str, Any] = {
        "documents_per_s": num_documents / elapsed_s,
        "mb_per_s": num_bytes / elapsed_s / 1e6,
    }
    for kind in config.ner_types:
        for key in ("", *LANGUAGES):
            label = f"{kind}_{key}" if key else kind
            wanted, told = counts[kind, key, "truth"], counts[kind, key, "spans"]
            result |= share(f"{label}_recall", counts[kind, key, "found"], wanted, "")
            result |= share(f"{label}_precision", counts[kind, key, "right"], told, "")
    return result


def _document(group: Sequence[Sentence]) -> tuple[str, list[tuple[int, int, str]]]:
    """Sentences as one text, and their spans in bytes of it."""
    text, spans = "", []
    for _, sentence, inside in group:
        spans += [(len(text) + start, len(text) + end, kind) for start, end, kind in inside]
        text += sentence + "\n"
    offsets = byte_offsets(text)
    return text, [(int(offsets[start]), int(offsets[end]), kind) for start, end, kind in spans]


def _compare(
    found: Sequence[tuple[int, int, str]],
    truth: Sequence[tuple[int, int, str]],
    types: Sequence[str],
    language: str,
    counts: Counter[tuple[str, str, str]],
) -> None:
    for kind in types:
        told = [(start, end) for start, end, name in found if name == kind]
        true = [(start, end) for start, end, name in truth if name == kind]
        covered = sum(any(s <= start and end <= e for s, e in told) for start, end in true)
        right = sum(any(s < end and start < e for start, end in true) for s, e in told)
        for key in (language, ""):
            counts[kind, key, "truth"] += len(true)
            counts[kind, key, "found"] += covered
            counts[kind, key, "spans"] += len(told)
            counts[kind, key, "right"] += right


def train(folder: Path, count: int = 400, steps: int = 600, seed: int = 0) -> None:
    """Write a small BERT for token classification, trained on `count` sentences a language."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer, Digits
    from tokenizers.pre_tokenizers import Sequence as InTurn
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import WordPieceTrainer
    from transformers import BertConfig, BertForTokenClassification

    made = list(sentences(count, TRAINING, TRAINING_SEED))
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(clean_text=False, strip_accents=False, lowercase=False)
    tokenizer.pre_tokenizer = InTurn([BertPreTokenizer(), Digits(individual_digits=True)])
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = WordPieceTrainer(vocab_size=1500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator((text for _, text, _ in made), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=192,
        id2label=dict(enumerate(LABELS)),
        label2id={label: number for number, label in enumerate(LABELS)},
    )
    model = BertForTokenClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    draw = np.random.default_rng(seed)
    for _ in range(steps):
        # Several sentences a row, as documents have them.
        rows = [_labelled(tokenizer, [made[i] for i in draw.integers(len(made), size=4)])
                for _ in range(8)]  # fmt: skip
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
        labels = torch.tensor([told + [-100] * (longest - len(told)) for _, told in rows])
        loss = model(ids, attention_mask=(ids != 0).long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def _labelled(tokenizer: Any, group: Sequence[Sentence]) -> tuple[list[int], list[int]]:
    """Ids and numbers of labels of a row; -100 at special tokens."""
    text, spans = "", []
    for _, sentence, inside in group:
        spans += [(len(text) + start, len(text) + end, kind) for start, end, kind in inside]
        text += sentence + "\n"
    encoded = tokenizer.encode(text)
    labels = []
    for (start, end), is_special in zip(encoded.offsets, encoded.special_tokens_mask, strict=True):
        inside = [span for span in spans if span[0] < end and start < span[1]]
        place = "B" if inside and inside[0][0] == start else "I"
        label = f"{place}-{inside[0][2]}" if inside else "O"
        labels.append(-100 if is_special else LABELS.index(label))
    return encoded.ids, labels


def main(arguments: list[str]) -> int:
    trains = arguments[:1] == ["--train"]
    rest = arguments[1:] if trains else arguments
    if not rest:
        note(
            "give the folder of a model: python -m benchmarks.data.ner [--train] MODEL_DIR [COUNT]"
        )
        return 2
    folder, count = Path(rest[0]), int(rest[1]) if len(rest) > 1 else 200
    import torch

    torch.set_num_threads(1)
    known: dict[str, Any] = {"benchmark": "ner", "model": folder.name}
    if trains:
        begun = time.perf_counter()
        train(folder)
        known["training_s"] = time.perf_counter() - begun
    model_files(folder)
    there = known_types(folder, {})
    config = PiiConfig(ner=folder, ner_types=tuple(k for k in MODEL_TYPES if k in there))
    known |= measure(config, count)
    for kind in config.ner_types:
        show(
            f"{kind}: recall {known[f'{kind}_recall']:.3f} {known[f'{kind}_recall_interval']},"
            f" precision {known[f'{kind}_precision']} {known[f'{kind}_precision_interval']}"
        )
    show(json.dumps(known))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
