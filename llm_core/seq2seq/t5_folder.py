"""Reads and writes T5 models as Hugging Face folders, versions 1.0 and 1.1.

Whether the head is tied follows from the files, which hold `lm_head.weight` or not. Whether it is
scaled is `scale_decoder_outputs`, or, in folders of older libraries, `tie_word_embeddings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.files import PART_BYTES, read_tensors, read_values, write_folder
from llm_core.seq2seq.config import Seq2SeqConfig
from llm_core.seq2seq.model import EncoderDecoder

FFN = {"relu": "relu", "gated-gelu": "geglu"}
"""Theirs → ours."""
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
"""Copies of the embedding that some folders have."""
UNUSED = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)
"""In folders of version 1.0; no model reads it."""
ATTENTION = {"q": "q", "k": "k", "v": "v", "out": "o"}
SIZES = {
    "vocab_size": "vocab_size",
    "dim": "d_model",
    "num_encoder_layers": "num_layers",
    "num_decoder_layers": "num_decoder_layers",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "ffn_dim": "d_ff",
    "num_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "dropout_rate",
    "pad_id": "pad_token_id",
    "eos_id": "eos_token_id",
}
"""Ours → theirs."""
DEFAULTS = {
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "dropout_rate": 0.1,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
"""What folders leave out."""


def load_t5(folder: Path, dtype: torch.dtype = torch.float32) -> EncoderDecoder:
    """The model of a folder, on the CPU. Raises ConfigError where a field or a tensor does not
    fit."""
    values, weights = read_values(folder), read_tensors(folder)
    try:
        config = t5_config(values, tied_head="lm_head.weight" not in weights)
        with torch.device("meta"):
            model = EncoderDecoder(config)
        model.load_state_dict(_from_theirs(model, weights, dtype), assign=True)
    except ConfigError as error:
        raise ConfigError(f"{folder}: {error}") from error
    if config.tied_head:
        model.head.weight = model.embedding.weight
    return model


def t5_config(values: Any, tied_head: bool) -> Seq2SeqConfig:
    """Raises ConfigError for another kind of model."""
    if not isinstance(values, dict) or values.get("model_type") != "t5":
        kind = values.get("model_type") if isinstance(values, dict) else None
        raise ConfigError(
            f"model_type ({kind}) must be t5; decoder-only models are read by train.init_from"
        )
    known = DEFAULTS | {name: value for name, value in values.items() if value is not None}
    known.setdefault("num_decoder_layers", known.get("num_layers"))
    if missing := sorted(set(SIZES.values()) - known.keys()):
        raise ConfigError(f"config.json has no {missing[0]}; give the folder of a T5 model")
    for ours, theirs in SIZES.items():
        is_real = ours in ("norm_eps", "dropout")
        kinds, named = (int | float, "a number") if is_real else (int, "an integer")
        if not isinstance(known[theirs], kinds) or isinstance(known[theirs], bool):
            raise ConfigError(
                f"{theirs} ({known[theirs]!r}) must be {named}; fetch the folder again"
            )
    ffn = known.get("feed_forward_proj", "relu")
    if ffn not in list(FFN):
        raise ConfigError(
            f"feed_forward_proj ({ffn}) must be relu or gated-gelu; give a T5 1.0 or 1.1 model"
        )
    start = known.get("decoder_start_token_id", known["pad_token_id"])
    if start != known["pad_token_id"]:
        raise ConfigError(
            f"decoder_start_token_id ({start}) must be pad_token_id ({known['pad_token_id']}),"
            " because targets begin with it here; give a T5 model"
        )
    older = known.get("tie_word_embeddings", True) is not False
    return Seq2SeqConfig(
        **{ours: known[theirs] for ours, theirs in SIZES.items()},
        ffn=FFN[ffn],  # type: ignore[arg-type]
        tied_head=tied_head,
        scaled_head=known.get("scale_decoder_outputs", older),
    )


def write_t5(model: EncoderDecoder, folder: Path, part_bytes: int = PART_BYTES) -> None:
    """Write a model as `T5ForConditionalGeneration` reads it. Raises ConfigError for another
    kind."""
    config = model.config
    if config.kind != "t5":
        raise ConfigError(
            f"kind ({config.kind}) has no class in Hugging Face; only kind=t5 is written as a"
            " folder"
        )
    theirs = {ours: name for name, ours in FFN.items()}
    values = {name: getattr(config, ours) for ours, name in SIZES.items()} | {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "feed_forward_proj": theirs[config.ffn],
        "decoder_start_token_id": config.pad_id,
        "tie_word_embeddings": config.scaled_head,
        "scale_decoder_outputs": config.scaled_head,
        "torch_dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
    }
    weights = {their_name(config, name): value for name, value in model.state_dict().items()}
    if config.tied_head:
        del weights["lm_head.weight"]
    write_folder(folder, {n: weights[n].contiguous() for n in weights}, values, part_bytes)


def their_name(config: Seq2SeqConfig, name: str) -> str:
    """The name in Hugging Face's model of a weight in `EncoderDecoder.state_dict()`."""
    whole = {
        "embedding.weight": "shared.weight",
        "head.weight": "lm_head.weight",
        "encoder.norm.weight": "encoder.final_layer_norm.weight",
        "decoder.norm.weight": "decoder.final_layer_norm.weight",
    }
    if name in whole:
        return whole[name]
    stack, *path = name.removesuffix(".weight").split(".")
    if path == ["bias"]:
        return f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    _, layer, part, *leaf = path
    last = 1 if stack == "encoder" else 2
    kind = part.removesuffix("_norm")
    place = {"attention": 0, "cross": 1, "ffn": last}[kind]
    begin = f"{stack}.block.{layer}.layer.{place}"
    if part.endswith("_norm"):
        return f"{begin}.layer_norm.weight"
    if kind == "ffn":
        up = "wi" if config.ffn == "relu" else "wi_1"
        leaves = {"up": up, "gate": "wi_0", "down": "wo"}
        return f"{begin}.DenseReluDense.{leaves[leaf[0]]}.weight"
    module = "SelfAttention" if kind == "attention" else "EncDecAttention"
    return f"{begin}.{module}.{ATTENTION[leaf[0]]}.weight"


def _from_theirs(
    model: EncoderDecoder, weights: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    names = {ours: their_name(model.config, ours) for ours in model.state_dict()}
    if model.config.tied_head:
        names["head.weight"] = names["embedding.weight"]
    made = {}
    for ours, shape in ((n, w.shape) for n, w in model.state_dict().items()):
        theirs = names[ours]
        if theirs not in weights:
            raise ConfigError(f"{theirs} is missing from the files; fetch the folder again")
        if weights[theirs].shape != shape:
            raise ConfigError(
                f"{theirs} is {tuple(weights[theirs].shape)}, config.json makes it {tuple(shape)};"
                " give the config of these weights"
            )
        made[ours] = weights[theirs].to(dtype)
    unread = sorted(weights.keys() - set(names.values()) - set(UNUSED))
    for name in unread:
        if name not in COPIES or not torch.equal(weights[name].to(dtype), made["embedding.weight"]):
            raise ConfigError(f"{name} is not a weight of T5; give a T5 1.0 or 1.1 model")
    return made
