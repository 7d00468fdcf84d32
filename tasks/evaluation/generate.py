"""Writes the continuation of a text with a trained model, for samples and for the command line.

A prompt begins with what its tokenizer puts before a text: end-of-text for models trained here, the
context from which every document starts in training. The answer ends at end-of-text or another id
that the folder of the model names, at the token limit or where the model's `max_seq_len` is full.
Its text is that of whole characters: bytes of one that is not complete are held back, whether it is
told in pieces or returned. It is not scrubbed here: whoever stores or shows it does that.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_core.config import ConfigError

if TYPE_CHECKING:
    from llm_core.infer.sampling import SamplingParams
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer


@dataclass(frozen=True)
class Answer:
    """What follows a prompt, and whether it stopped because the model reads no further."""

    text: str
    num_tokens: int
    reached_max_seq_len: bool


class TextStream:
    """Text of ids as they come, continuing the ids before them.

    Bytes that are not UTF-8 become U+FFFD; those that a further token may complete are held back.
    """

    def __init__(self, tokenizer: Tokenizer, before: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.add(before)

    def add(self, ids: Iterable[int]) -> str:
        # A model may have more ids than its tokenizer, to pad the vocabulary; they have no text.
        known = [id for id in ids if id < self._tokenizer.vocab_size]
        return self._decoder.decode(self._tokenizer.decode_bytes(known))


def generate_text(
    model_folder: Path,
    tokenizer_folder: Path,
    prompt: str,
    params: SamplingParams,
    max_new_tokens: int = 128,
    on_text: Callable[[str], None] | None = None,
    device: str = "auto",
) -> Answer:
    """The continuation of `prompt`. `on_text` gets each new piece of whole characters at once.

    Raises ConfigError where the prompt leaves no room for an answer.
    """
    from llm_core.device import choose_device
    from llm_core.huggingface.export import load_model
    from tasks.tokenizer.encoder import load_tokenizer

    # Before the model is read, so that a device that is not there is an error at once.
    place = choose_device(device)
    model = load_model(model_folder, device=place)
    tokenizer = load_tokenizer(tokenizer_folder)
    ids = tokenizer.encode(prompt).tolist()
    stream = TextStream(tokenizer, ids)

    def on_token(_: int, token: int) -> None:
        if on_text is not None and (piece := stream.add([token])):
            on_text(piece)

    stops = eos_ids(model_folder, model, tokenizer)
    return generate_texts(model, tokenizer, [ids], params, max_new_tokens, on_token, stops)[0]


def generate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    max_new_tokens: int,
    on_token: Callable[[int, int], None] | None = None,
    stops: Sequence[int] | None = None,
) -> list[Answer]:
    """The continuations of encoded prompts; the random stream of a prompt depends on the seed and
    its number. stops: ids that end an answer; None: end-of-text.

    Raises ConfigError where a prompt leaves no room for an answer.
    """
    from llm_core.infer.engine import generate

    limits = answer_limits(model, tokenizer, prompts, max_new_tokens)
    begun = [begin(tokenizer, prompt) for prompt in prompts]
    ends = [tokenizer.eos_id] if stops is None else stops
    answers = generate(model, begun, params, limits, ends, on_token)
    return [
        Answer(TextStream(tokenizer, prompt).add(ids), len(ids), len(ids) == limit < max_new_tokens)
        for prompt, ids, limit in zip(prompts, answers, limits, strict=True)
    ]


def begin(tokenizer: Tokenizer, prompt: Sequence[int]) -> list[int]:
    """What a model is given: the start of a text and the prompt; end-of-text if both are empty."""
    return [*tokenizer.start_ids, *prompt] or [tokenizer.eos_id]


def eos_ids(folder: Path, model: Transformer, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids that end an answer, as the folder of the model lists them; else end-of-text."""
    from llm_core.huggingface.generation import read_eos_ids

    return read_eos_ids(folder, model.config.vocab_size) or (tokenizer.eos_id,)


def answer_limits(
    model: Transformer, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> list[int]:
    """New tokens that each prompt may get.

    Raises ConfigError for a prompt so long that the model cannot write a token after it.
    """
    longest = model.config.max_seq_len
    lengths = [len(begin(tokenizer, prompt)) for prompt in prompts]
    for number, length in enumerate(lengths, start=1):
        if max_new_tokens and length >= longest:
            which = f"prompt {number}" if len(prompts) > 1 else "the prompt"
            raise ConfigError(
                f"{which} has {length} tokens with its start, and the model reads {longest}"
                " (max_seq_len), the answer included; shorten it"
            )
    return [min(max_new_tokens, max(longest - length, 0)) for length in lengths]
