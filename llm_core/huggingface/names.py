"""Maps the tensors of Hugging Face models to ours and back: Llama, Qwen 2 and 3, Gemma, GPT-2,
GPT-NeoX, and models of experts.

Pure translation of names, both ways; `config.json` is that of `llm_core.huggingface.config`, files
that of `llm_core.huggingface.export`. Fused weights are split on the way out and joined on the way
in, GPT-2's transposed, with the values unchanged, so both sides compute the same logits. On the way
in each is made when it is asked for, or some of its rows: a whole model need not fit beside
another, and a process reads what it keeps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from llm_core.config import ConfigError
from llm_core.huggingface.expert_names import plain_names, stacked_names
from llm_core.huggingface.neox_names import HEAD, neox_names
from llm_core.model.config import ModelConfig, block_of
from llm_core.model.fused import (
    join_blocks,
    join_gate_up,
    join_qkv,
    split_blocks,
    split_gate_up,
    split_qkv,
)
from llm_core.model.transformer import Transformer

BUFFERS = (
    *(".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"),
    *(".attention.bias", ".attention.masked_bias"),
)
"""Ends of names that hold no weights: masks of GPT-2 and GPT-NeoX, rotary frequencies of early
files."""
NUMBERS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""What weights may be held in."""


ALL = slice(None)


class Made(Mapping[str, Tensor]):
    """Tensors by name, each made when it is asked for and not kept.

    makers: of some rows of each, `ALL` or from a first one to before another.
    """

    def __init__(self, makers: Mapping[str, Callable[[slice], Tensor]]) -> None:
        self._makers = makers

    def __getitem__(self, name: str) -> Tensor:
        return self._makers[name](ALL)

    def rows(self, name: str, rows: slice) -> Tensor:
        """Some rows; of mapped files, no others are read."""
        return self._makers[name](rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


def to_hugging_face(config: ModelConfig, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names and fused weights → Hugging Face names and separate weights."""
    found: dict[str, Tensor] = {}
    for ours in state:
        found |= parts_of(config, ours, state[ours])
    return found


def parts_of(config: ModelConfig, ours: str, weight: Tensor) -> dict[str, Tensor]:
    """Hugging Face's tensors that one of ours holds; none where it is the second name of a tied
    one."""
    if ours == "head.weight":
        return {} if config.tied_embeddings else {_head_name(config): weight}
    if config.family == "gpt2":
        theirs = _gpt2_names(config)[ours]
        return {theirs: _turn(theirs, _straight(config, ours, weight))}
    if names := _fused(config).get(ours):
        return dict(zip(names, _parts(config, ours, weight), strict=True))
    return {_plain(config)[ours]: weight}


def names_of(config: ModelConfig, ours: str) -> list[str]:
    """Hugging Face's tensors in one of our weights of a block."""
    return _fused(config).get(ours) or [_plain(config)[ours]]


def split_rows(config: ModelConfig, ours: str, rows: Tensor) -> tuple[Tensor, ...]:
    """Rows for each output of our weight of this name, in the order of each of `names_of`."""
    if config.family == "gpt2":
        return (_straight(config, ours, rows),)
    return _parts(config, ours, rows) if ours in _fused(config) else (rows,)


def joined_rows(
    config: ModelConfig, ours: str, parts: Sequence[Tensor], rows: slice = ALL
) -> Tensor:
    """The inverse of `split_rows`, or some rows of it."""
    if config.family == "gpt2" and ".qkv." in ours:
        return _join(config, ours, parts[0].chunk(3))[rows]
    return (_join(config, ours, parts) if ours in _fused(config) else parts[0])[rows]


def from_hugging_face(config: ModelConfig, weights: Mapping[str, Tensor]) -> Made:
    """The inverse of `to_hugging_face`, with both names of a tied embedding.

    Raises ConfigError for tensors that are missing, left over, of another shape or no plain
    floating-point numbers; and for rows of a tied embedding that a head in the files differs from,
    when these are made.
    """
    # transformers writes a shared expert of width 0 where there is none.
    weights = {
        name: weight
        for name, weight in weights.items()
        if not name.endswith(BUFFERS) and 0 not in weight.shape
    }
    if config.family == "gpt2":
        # The published files leave out the first name.
        bare = {name.removeprefix("transformer."): weight for name, weight in weights.items()}
        weights = {n if n.startswith("lm_head") else f"transformer.{n}": w for n, w in bare.items()}
    if config.num_layers > len(weights):
        raise ConfigError(
            f"num_hidden_layers ({config.num_layers:,}) is wrong, the files hold {len(weights)}"
            " tensors; give the folder of one whole model"
        )
    with torch.device("meta"):
        wanted = {
            name: tensor.shape
            for name, tensor in to_hugging_face(config, Transformer(config).state_dict()).items()
        }
    head_name = _head_name(config)
    odd = sorted(
        wanted.keys() ^ (weights.keys() - ({head_name} if config.tied_embeddings else set()))
    )
    if odd:
        verb = "is missing" if odd[0] in wanted else "is not part of such a model"
        differ = "1 tensor differs" if len(odd) == 1 else f"{len(odd)} tensors differ"
        rule = f"{differ} from a {config.family} of {config.num_layers} layers"
        raise ConfigError(f"{odd[0]} {verb} ({rule}); give the folder of one whole model")
    for name, shape in wanted.items():
        if weights[name].shape != shape:
            raise ConfigError(
                f"{name} is {tuple(weights[name].shape)}, in the configured model {tuple(shape)};"
                " give the configuration it was made with, or fetch it again"
            )
        if weights[name].dtype not in NUMBERS:
            raise ConfigError(
                f"{name} holds {str(weights[name].dtype).removeprefix('torch.')}, which needs"
                " scales that are not read here; give the original model"
            )
    plain, fused = _plain(config), _fused(config)

    def one(ours: str, theirs: str, rows: slice) -> Tensor:
        weight = weights[theirs]
        if config.family == "gpt2":
            weight = _turn(theirs, weight)
            if ".qkv." in ours:
                return _some(partial(_join, config, ours), weight.chunk(3), rows)
        return weight[rows]

    def joined(ours: str, parts: Sequence[str], rows: slice) -> Tensor:
        return _some(partial(_join, config, ours), [weights[name] for name in parts], rows)

    def tied(rows: slice) -> Tensor:
        embedding = one("embedding.weight", plain["embedding.weight"], rows)
        # A head that is saved although it is tied must be the embedding.
        head = weights.get(head_name)
        if head is not None and not torch.equal(head[rows], embedding):
            raise ConfigError(
                f"{head_name} differs from the embedding, and tie_word_embeddings says that they"
                " are one; set it false in config.json"
            )
        return embedding

    state: dict[str, Callable[[slice], Tensor]] = {
        ours: partial(one, ours, theirs) for ours, theirs in plain.items()
    }
    state |= {ours: partial(joined, ours, parts) for ours, parts in fused.items()}
    if config.tied_embeddings:
        return Made(state | dict.fromkeys(("embedding.weight", "head.weight"), tied))
    return Made(state | {"head.weight": partial(one, "head.weight", head_name)})


def _some(
    join: Callable[[Sequence[Tensor]], Tensor], parts: Sequence[Tensor], rows: slice
) -> Tensor:
    """Rows of what is joined of parts by their first dim; no other row of the parts is read."""
    if rows == ALL:
        return join(parts)
    ends = list(itertools.accumulate(map(len, parts)))
    # Numbers of rows are joined as rows are.
    places = join(torch.arange(ends[-1]).split([len(part) for part in parts]))[rows]
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    out = parts[0].new_empty(len(places), *parts[0].shape[1:], dtype=dtype)
    for part, end in zip(parts, ends, strict=True):
        here = (places < end) & (places >= end - len(part))
        out[here] = part[places[here] - (end - len(part))].to(dtype)
    return out


def _head_name(config: ModelConfig) -> str:
    return HEAD if config.family == "gpt_neox" else "lm_head.weight"


def _plain(config: ModelConfig) -> dict[str, str]:
    """Our tensor → the Hugging Face tensor that it is, but for its order; without the head."""
    if config.family == "gpt_neox":
        return neox_names(config)
    return _gpt2_names(config) if config.family == "gpt2" else _llama_names(config)


def _turn(theirs: str, weight: Tensor) -> Tensor:
    """GPT-2 keeps the matrices of its blocks as (in, out), we and its embeddings as (out, in)."""
    return weight.t() if weight.ndim == 2 and ".h." in theirs else weight


def _parts(config: ModelConfig, ours: str, fused: Tensor) -> tuple[Tensor, ...]:
    if config.experts is not None and ".ffn." in ours:
        if ".shared." in ours:
            return split_blocks(fused, block_of(config.experts.shared_dim))
        return fused.chunk(config.experts.number * (2 if ".gate_up." in ours else 1))
    return split_qkv(config, fused) if ".qkv." in ours else split_gate_up(config, fused)


def _join(config: ModelConfig, ours: str, parts: Sequence[Tensor]) -> Tensor:
    if config.experts is not None and ".ffn." in ours:
        if ".shared." in ours:
            gate, up = parts
            return join_blocks(gate, up, block_of(config.experts.shared_dim))
        return torch.cat(list(parts))
    return join_qkv(config, *parts) if ".qkv." in ours else join_gate_up(config, *parts)


def _straight(config: ModelConfig, ours: str, weight: Tensor) -> Tensor:
    """GPT-2 fuses queries, keys and values as we do, but all heads of one kind after another."""
    return torch.cat(split_qkv(config, weight)) if ".qkv." in ours else weight


@functools.cache
def _gpt2_names(config: ModelConfig) -> dict[str, str]:
    names = {"embedding": "wte", "positions": "wpe"}
    found = {f"{ours}.weight": f"transformer.{theirs}.weight" for ours, theirs in names.items()}
    parts = {"attention_norm": "ln_1", "ffn_norm": "ln_2"}
    parts |= {"attention.qkv": "attn.c_attn", "attention.out": "attn.c_proj"}
    parts |= {"ffn.up": "mlp.c_fc", "ffn.down": "mlp.c_proj"}
    for end in ("weight", "bias"):
        found[f"norm.{end}"] = f"transformer.ln_f.{end}"
        for layer in range(config.num_layers):
            found |= {
                f"blocks.{layer}.{ours}.{end}": f"transformer.h.{layer}.{theirs}.{end}"
                for ours, theirs in parts.items()
            }
    return found


@functools.cache
def _llama_names(config: ModelConfig) -> dict[str, str]:
    parts = {
        "attention_norm.weight": "input_layernorm.weight",
        "ffn_norm.weight": "post_attention_layernorm.weight",
        "attention.out.weight": "self_attn.o_proj.weight",
    }
    parts |= plain_names(config) if config.experts else {"ffn.down.weight": "mlp.down_proj.weight"}
    parts |= {"attention.out.bias": "self_attn.o_proj.bias"} if config.out_bias else {}
    parts |= {"ffn.down.bias": "mlp.down_proj.bias"} if config.ffn_bias else {}
    for n in "qk" if config.qk_norm else "":
        parts[f"attention.{n}_norm.weight"] = f"self_attn.{n}_norm.weight"
    found = {"embedding.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    for layer in range(config.num_layers):
        found |= {
            f"blocks.{layer}.{ours}": f"model.layers.{layer}.{theirs}"
            for ours, theirs in parts.items()
        }
    return found


@functools.cache
def _fused(config: ModelConfig) -> dict[str, list[str]]:
    """Our fused tensor → the Hugging Face tensors in it."""
    found: dict[str, list[str]] = {}
    if config.family in ("gpt2", "gpt_neox"):  # which have them fused
        return found
    for layer in range(config.num_layers):
        ours, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        for end in ("weight", *(["bias"] if config.qkv_bias else [])):
            found[f"{ours}.attention.qkv.{end}"] = [
                f"{theirs}.self_attn.{n}_proj.{end}" for n in "qkv"
            ]
        if config.experts is not None:
            for name, parts in stacked_names(config).items():
                found[f"{ours}.{name}"] = [f"{theirs}.{part}" for part in parts]
            continue
        for end in ("weight", *(["bias"] if config.ffn_bias else [])):
            found[f"{ours}.ffn.gate_up.{end}"] = [
                f"{theirs}.mlp.{n}_proj.{end}" for n in ("gate", "up")
            ]
    return found
