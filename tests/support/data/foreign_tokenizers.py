"""Small tokenizers in the forms that others publish: byte-level, and sentencepiece with a space
before every text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tasks.tokenizer.encoder import start_with
from tasks.tokenizer.pretokenizers import letter_bytes

Form = Literal["gpt2", "llama2", "metaspace"]
FORMS: tuple[Form, ...] = ("gpt2", "llama2", "metaspace")

CONTROLS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>")
SPACE = "\u2581"
MERGED = ("th", "the", f"{SPACE}the", f"{SPACE}a", SPACE * 2, "好好", "ab")


def foreign_tokenizer(form: Form) -> tokenizers.Tokenizer:
    """Begins texts with `<s>`. Control tokens have the last ids, in a unigram model the first."""
    if form == "gpt2":
        letters = sorted(letter_bytes())
        vocab = {letter: id for id, letter in enumerate([*letters, "th", "the", "Ġthe"])}
        merges = [("t", "h"), ("th", "e"), ("Ġ", "the")]
        model = tokenizers.Tokenizer(models.BPE(vocab, merges))
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = decoders.ByteLevel()
    else:
        model = tokenizers.Tokenizer(_pieces(form))
        if form == "llama2":
            model.normalizer = normalizers.Sequence(
                [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
            )
            model.decoder = decoders.Sequence(
                [
                    decoders.Replace(SPACE, " "),
                    decoders.ByteFallback(),
                    decoders.Fuse(),
                    decoders.Strip(" ", 1, 0),
                ]
            )
        else:
            model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
            model.decoder = decoders.Sequence(
                [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first", split=False)]
            )
    model.add_special_tokens([AddedToken(token, normalized=False) for token in CONTROLS])
    return start_with(model, "<s>")


def publish_tokenizer(
    form: Form, folder: Path, chat_template: str | None = None, eos: str = "</s>"
) -> Path:
    """Write the files of a published folder."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign_tokenizer(form).save(str(folder / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": eos}
    if chat_template is not None:
        named["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


def _pieces(form: Form) -> models.Model:
    singles = [*map(chr, range(0x21, 0x7F)), SPACE, "é", "好"]
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *singles, *MERGED]
    if form == "metaspace":
        # Control tokens among the pieces, found by their spelling, as in T5 and XLM-R.
        pieces = ["<unk>", *CONTROLS[:2], *pieces[1:]]
        scored = [(piece, float(len(piece)) - 20.0) for piece in pieces]
        return models.Unigram(scored, unk_id=0, byte_fallback=True)
    ids = {piece: id for id, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in MERGED
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
