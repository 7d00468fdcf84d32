"""Scores other models on the documents that the run's own model is scored on: a Hugging Face folder
(`evaluate.folder`), and the same weights in fewer bits (`evaluate.formats`).

Differences are the other minus the run's own, in bits per byte, with documents drawn together. A
folder reads the same texts with its own tokenizer, begins each as that tokenizer does, and has its
own window; where its tokens do not give a text back it has no bits per byte, only suites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_core.config import ConfigError
from llm_core.data.ramp import BatchSizes
from tasks.corpus.statistics import ratio_bootstrap
from tasks.evaluation.config import EvaluateConfig
from tasks.evaluation.held_out import Scored, context_of, rounded, wanted_dtype
from tasks.evaluation.suite_differences import differences
from tasks.evaluation.suite_parts import OWN, Judged, Load
from tasks.evaluation.suite_results import over_suites, read_rows
from tasks.runtime.artifact import Artifact

if TYPE_CHECKING:
    from llm_core.data.shards import Document
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

BESIDE = "folder"
"""The name of the other model, in rows."""


def beside_folder(folder: Path, config: EvaluateConfig) -> Judged:
    """The model of a folder, with the window it is scored in. Raises ConfigError."""
    from llm_core.huggingface.export import read_config

    if not folder.is_dir():
        raise ConfigError(f"evaluate.folder ({folder}) is not a folder; name that of a model")
    longest = read_config(folder).max_seq_len
    usual = longest if config.windows == "whole" else min(longest, config.batch_tokens)
    window = config.window_tokens or usual
    if window > longest:
        raise ConfigError(
            f"window_tokens ({window}) must be at most the max_seq_len of evaluate.folder"
            f" ({longest})"
        )
    return Judged(BESIDE, folder, folder, window, is_of_run=False)


def checkpoints(own: Judged, train: Artifact, config: EvaluateConfig) -> list[Judged]:
    """The models that training has kept of `evaluate.checkpoints`, in order of steps.

    Raises ConfigError for a step that has none.
    """
    folders = [file.parent for file in train.files("models/step-*/config.json")]
    kept = {int(folder.name.removeprefix("step-")): folder for folder in folders}
    missing = sorted(set(config.checkpoints) - kept.keys())
    if missing:
        raise ConfigError(
            f"evaluate.checkpoints ({missing[0]}) is not a step of which training kept the model"
            f" ({', '.join(map(str, sorted(kept))) or 'none'}); set train.keep_models_every"
        )
    steps = sorted(set(config.checkpoints))
    return [replace(own, name=f"step-{n}", model=kept[n]) for n in steps]


def curves(suites: Mapping[str, Mapping[str, Any]], train: Artifact) -> dict[str, Any]:
    """{suite: points of its headline, by trained tokens}, the last one of the run's own model.

    suites: {model: {suite: its figures}}, as `score_suites` gives them.
    """
    settings = train.config["train"]
    sizes, seq_len = BatchSizes.of(settings), settings["seq_len"]
    steps = {name: int(name.removeprefix("step-")) for name in suites if name.startswith("step-")}
    steps[OWN] = settings["num_steps"]
    found: dict[str, Any] = {}
    for name, suite in suites[OWN].items():
        metric = suite["headline"]
        ordered = sorted(steps.items(), key=lambda item: item[1])
        points = [
            {"step": step, "tokens": sizes.before(step) * seq_len}
            | suites[model][name]["metrics"][metric]
            for model, step in ordered
        ]
        found[name] = {"metric": metric, "points": points}
    return found


def score_folder(
    other: Judged,
    tokenizer: Tokenizer,
    chosen: Sequence[Document],
    scored: Scored,
    load: Load,
    config: EvaluateConfig,
) -> dict[str, Any]:
    """Bits per byte of a folder on the scored texts. tokenizer: of the run, which gives the texts
    back."""
    from llm_core.huggingface.export import read_config
    from llm_core.infer.cache.rows import place_of
    from tasks.tokenizer.encoder import load_tokenizer

    codec, eos = load_tokenizer(other.tokenizer), tokenizer.eos_id
    tokens = [np.asarray(d.tokens[: config.max_document_tokens], np.int64) for d in chosen]
    texts = [tokenizer.decode_bytes(t[t != eos]) for t in tokens]
    own = [codec.encode(text.decode("utf-8", "replace")).astype(np.int64) for text in texts]
    changed = sum(codec.decode_bytes(ids) != text for ids, text in zip(own, texts, strict=True))
    found: dict[str, Any] = {
        "name": other.model.resolve().name,
        "window_tokens": other.window_tokens,
    }
    if changed:
        return found | {"no_bits": f"its tokens do not give {changed} of {len(texts)} texts back"}
    model, _ = load(other.model, other.tokenizer)
    start = codec.start_ids[0] if codec.start_ids else codec.eos_id
    windows = other.window_tokens, context_of(other.window_tokens, config)
    bits = _bits(model, own, start, *windows, config)
    dtype = str(place_of(model)[0]).removeprefix("torch.")
    # Not those of `model`, which on one of several ranks is a share.
    parameters = read_config(other.model).num_parameters()
    found |= {"dtype": dtype, "tokens": sum(map(len, own)), "parameters": parameters}
    return found | compare(bits, scored, config)


def score_formats(
    folder: Path,
    chosen: Sequence[Document],
    eos: int,
    windows: tuple[int, int],
    scored: Scored,
    config: EvaluateConfig,
) -> dict[str, Any]:
    """{format: bits per byte of the run's model with weights in it, and the bytes that they take}.

    `trained` is what the other formats are compared with. windows: tokens of a window, and those of
    context.
    """
    import torch

    from llm_core.device import choose_device
    from llm_core.huggingface.export import load_model
    from llm_core.huggingface.files import weight_files
    from llm_core.quantize.model import num_bytes

    stored = sum(file.stat().st_size for file in weight_files(folder))
    trained = compare(scored.bits["model"], scored, config)["val_bpb"]
    found: dict[str, Any] = {"trained": {"weight_bytes": stored, "val_bpb": trained}}
    device = choose_device(config.device)
    dtype = getattr(torch, wanted_dtype(config, device.type))
    tokens = [np.asarray(d.tokens[: config.max_document_tokens], np.int64) for d in chosen]
    for name in config.formats:
        model = load_model(folder, dtype, device, name)
        bits = _bits(model, tokens, eos, *windows, config)
        found[name] = {"weight_bytes": num_bytes(model)} | compare(bits, scored, config)
    return found


def beside_suites(
    suites: Mapping[str, Mapping[str, Mapping[str, Any]]], out_dir: Path
) -> dict[str, Any]:
    """Figures of the folder's suites, and what differs on the same items."""
    own, other = suites[OWN], suites[BESIDE]
    made = Artifact(out_dir, "evaluate")
    rows = read_rows(made), read_rows(made, BESIDE)
    found = {"suites": other, "over_suites": over_suites(other)}
    return found | {"suite_differences": differences(own, other, *rows)}


def _bits(
    model: Transformer,
    tokens: Sequence[np.ndarray],
    start: int,
    window: int,
    context: int,
    config: EvaluateConfig,
) -> np.ndarray:
    """Bits of each document after `start`, without those of a closing `start`."""
    from llm_core.infer.bits_per_byte import score_documents

    sizes = window, context, config.batch_tokens, config.windows
    bits = score_documents(model, list(tokens), start, *sizes)
    return np.array([b[t != start].sum() for b, t in zip(bits, tokens, strict=True)])


def compare(bits: np.ndarray, scored: Scored, config: EvaluateConfig) -> dict[str, Any]:
    """Bits per byte, and how much more they are than those of the run's own model."""
    found = {}
    for name, counted in (("val_bpb", bits), ("difference", bits - scored.bits["model"])):
        sizes = config.bootstrap_samples, config.seed
        interval = ratio_bootstrap(counted, scored.num_bytes, *sizes)
        found[name] = {end: rounded(getattr(interval, end)) for end in ("value", "low", "high")}
    return found
