"""Opens what a setting `draft` names: guesses of tokens, which a model checks several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llm_core.config import ConfigError, local_path

if TYPE_CHECKING:
    from llm_core.infer.speculative import Draft
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

NGRAM = "ngram"


def open_draft(draft: str, model: Transformer, tokenizer: Tokenizer) -> Draft:
    """`ngram`, or the model of a folder. Raises ConfigError for one with other tokens."""
    from llm_core.huggingface.export import load_model, read_config
    from llm_core.infer.cache.rows import place_of
    from llm_core.infer.speculative import ModelDraft, NGramDraft
    from tasks.tokenizer.encoder import load_tokenizer

    if draft == NGRAM:
        return NGramDraft()
    folder = local_path(draft, "draft")
    if not folder.is_dir():
        raise ConfigError(
            f"draft ({draft}) must be {NGRAM} or the folder of a smaller model with the same tokens"
        )
    ours, theirs = model.config.vocab_size, read_config(folder).vocab_size
    if ours != theirs or not _are_equal(tokenizer, load_tokenizer(folder)):
        raise ConfigError(
            f"draft ({draft}) has other tokens than the model; give a model with the same"
            f" tokenizer, or draft={NGRAM}"
        )
    small = load_model(folder, *place_of(model))
    return ModelDraft(small, min(small.config.max_seq_len, model.config.max_seq_len))


def _are_equal(ours: Tokenizer, theirs: Tokenizer) -> bool:
    size = ours.vocab_size
    return size == theirs.vocab_size and all(
        ours.name_of(id) == theirs.name_of(id) for id in range(size)
    )
