"""Measures how well the model predicts unseen text, in bits per UTF-8 byte of validation documents,
and how well it does on suites.

bits per byte = Σ −log2 p(token) / Σ bytes, over whole documents, each scored from its own start
with the end-of-text id as its only context (`llm_core.infer.bits_per_byte` has the window policy).
The bits of the closing end-of-text are in neither sum; they are reported apart. Bytes are those of
the text itself: a tokenizer that does not give a document back byte for byte is refused, for its
numbers would compare with nothing. 95 % intervals come from a bootstrap over documents. Beside it,
on exactly the same tokens and bytes: add-one unigram and bigram models of the training shards.

In: `id, text` of documents, `tokens, id, source, language, num_bytes` of the validation shards, the
tokens of the training shards. Out: `eval.json`, with a row per document for paired comparisons, and
`samples.json` (scrubbed); with suites (`tasks.evaluation.suite_parts`), `items.parquet` with a row
per item; and what `tasks.evaluation.beside` says of other models. Numbers are rounded to what
float32 passes can promise. Cost: one forward over at most twice the scored tokens, one pass over
the training tokens, and that of the suites.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.evaluation.beside import (
    beside_folder,
    beside_suites,
    checkpoints,
    curves,
    score_folder,
    score_formats,
)
from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig, GenerateConfig
from tasks.evaluation.generate import TextStream, answer_limits, eos_ids, generate_texts
from tasks.evaluation.held_out import (
    check_round_trip,
    choose_documents,
    choose_window,
    document_rows,
    policy_of,
    score,
    summarise,
    to_scoring_dtype,
    wanted_dtype,
)
from tasks.evaluation.models import open_models
from tasks.evaluation.seen_items import seen_items
from tasks.evaluation.suite_parts import (
    OWN,
    Judged,
    check_templates,
    first_answers,
    loader,
    score_suites,
    whole_loader,
)
from tasks.evaluation.suite_results import for_tracking, over_suites
from tasks.runtime.artifact import Artifact, write_json
from tasks.runtime.parts import RunParts, serial

if TYPE_CHECKING:
    from llm_core.data.shards import Document
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer


def evaluate_model(
    documents: Artifact,
    tokenizer: Artifact,
    shards: Artifact,
    train: Artifact,
    out_dir: Path,
    config: EvaluateStageConfig,
    run_parts: RunParts = serial,
) -> Artifact:
    """Score validation documents with the trained model and n-gram baselines, and write samples.

    Deterministic for equal input and config, in whatever order the shards hold the documents.
    Raises StageFailure without validation documents, or where the tokenizer is not lossless.
    """
    import torch

    from llm_core.data.shards import open_shards
    from llm_core.device import choose_device
    from tasks.tokenizer.encoder import load_tokenizer

    scoring, generation = config.evaluate, config.generate
    scoring.require_backend()
    ranks, replicas = scoring.tensor_parallel, scoring.data_parallel
    with open_models(ranks, scoring.device, data_parallel=replicas) as models:
        # One process compares types; several load the one they score in.
        alone = ranks * replicas == 1
        device = choose_device(scoring.device)
        dtype = "float32" if alone else wanted_dtype(scoring, device.type)
        model = models.load(train.path / "model", getattr(torch, dtype))
        codec = load_tokenizer(tokenizer.path)
        validation, training = (
            open_shards(shards.path, "validation"),
            open_shards(shards.path, "train"),
        )
        for split in (validation, training):
            split.check_ids(model.config.vocab_size)
        chosen, skipped = choose_documents(validation, scoring)
        check_round_trip(documents, codec, chosen)
        window, context = choose_window(train, model, scoring)
        own = Judged(OWN, train.path / "model", tokenizer.path, window)
        steps = checkpoints(own, train, scoring)
        other = None if scoring.folder is None else beside_folder(scoring.folder, scoring)
        judged = [own, *steps, *([] if other is None else [other])]
        if scoring.chat and config.suites.folders:
            check_templates(judged)
        prompts = choose_prompts(codec, chosen, scoring)
        # A prompt that does not fit is an error before anything is scored.
        answer_limits(model, codec, prompts, generation.max_new_tokens)
        answer = partial(first_answers, own, model, codec, config)
        scored_in = to_scoring_dtype(model, codec, chosen, window, context, scoring, answer)
        scored = score(model, codec, training, chosen, window, context, scoring)
        ends = eos_ids(own.model, model, codec)
        samples = write_samples(model, codec, prompts, ends, generation)
        compared = {}
        is_same_rule = scoring.windows == "disjoint" and scoring.max_document_tokens is None
        if scoring.backend == "lm_eval" and is_same_rule:
            from tasks.evaluation.harness import compare_documents

            compared["lm_eval"] = compare_documents(model, codec, scored, window, scoring)
        del model  # suites load their own, and memory may not hold both
        counts = skipped | {
            "documents": len(chosen),
            "tokens": int(scored.num_tokens.sum()),
            "bytes": int(scored.num_bytes.sum()),
        }
        policy = policy_of(window, context, scoring) | scored_in
        result = summarise(scored, scoring) | {"policy": policy, "counts": counts} | compared
        if scoring.formats:
            sizes = codec.eos_id, (window, context)
            result["formats"] = score_formats(own.model, chosen, *sizes, scored, scoring)
        load = whole_loader(scoring) if alone else loader(models, scoring)
        if other is not None:
            result["beside"] = score_folder(other, codec, chosen, scored, load, scoring)
        if config.suites.folders:
            sought = config.suites.searched(), config.contamination
            seen = seen_items(shards, tokenizer, *sought, out_dir, run_parts)
            shared_by = None if alone else load
            suites = score_suites(judged, seen, config, out_dir, run_parts, shared_by)
            if scoring.backend == "lm_eval":
                from tasks.evaluation.harness import add_harness

                add_harness(suites[OWN], own, config, out_dir, load)
            result |= {"suites": suites[OWN], "over_suites": over_suites(suites[OWN])}
            result |= {"eval": for_tracking(suites[OWN])}
            if steps:
                result["curves"] = curves(suites, train)
            if other is not None:
                result["beside"] |= beside_suites(suites, out_dir)
    whole_loader.cache_clear()  # later stages need its memory
    write_json(out_dir / "eval.json", result | {"documents": document_rows(scored)})
    write_json(out_dir / "samples.json", samples)
    return Artifact(out_dir, "evaluate", counts, result | {"samples": samples})


def choose_prompts(
    tokenizer: Tokenizer, chosen: Sequence[Document], config: EvaluateConfig
) -> list[list[int]]:
    """The configured prompts, and the first tokens of some documents."""
    prompts = [tokenizer.encode(text).tolist() for text in config.sample_prompts]
    for document in chosen[: config.num_document_prompts]:
        closed = document.tokens[-1] == tokenizer.eos_id
        text_tokens = document.tokens[:-1] if closed else document.tokens
        prompts.append(text_tokens[: config.document_prompt_tokens].tolist())
    return prompts


def write_samples(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    config: GenerateConfig,
) -> list[dict[str, str]]:
    """Continuations of prompts, all scrubbed. Prompt and text are whole characters. ends: ids that
    end a text."""
    from tasks.pii.scrub import scrub

    answers = generate_texts(
        model,
        tokenizer,
        prompts,
        config.sampling(),
        config.max_new_tokens,
        ends,
        config.stop,
    )
    texts = [TextStream(tokenizer).add(prompt) for prompt in prompts]
    return [
        {"prompt": scrub(text), "text": scrub(answer.text)}
        for text, answer in zip(texts, answers, strict=True)
    ]
