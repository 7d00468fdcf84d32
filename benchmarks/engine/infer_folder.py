"""Writes a model of random weights with a tokenizer of made-up tokens, as a folder to serve."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from llm_core.huggingface.config import hugging_face_config
from llm_core.huggingface.export import export_model
from llm_core.huggingface.rounded import write_rounded
from llm_core.model.transformer import Transformer
from llm_core.quantize.model import rounded_weights
from tasks.tokenizer.pretokenizers import letter_bytes

END = "<|endoftext|>"


def write_folder(model: Transformer, folder: Path) -> Path:
    """Every id is a byte or some letters, the last one ends a text."""
    folder.mkdir(parents=True)
    if rounded_weights(model):
        dtype = str(model.norm.weight.dtype).removeprefix("torch.")
        values = hugging_face_config(model.config, dtype, model.config.vocab_size - 1)
        write_rounded(model, values, folder)
    else:
        state, last = model.state_dict(), model.config.vocab_size - 1
        export_model(model.config, state, folder, eos_id=last)
    letters = sorted(letter_bytes())
    made_up = [f"t{id}" for id in range(len(letters), model.config.vocab_size - 1)]
    vocab = {piece: id for id, piece in enumerate([*letters, *made_up])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
