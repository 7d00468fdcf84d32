"""Writes the continuation of a text with a trained model, for samples and for the command line.

A prompt begins with what its tokenizer puts before a text: end-of-text for models trained here, the
context from which every document starts in training. The answer ends at end-of-text or another id
that the folder of the model names, at the token limit or where the model's `max_seq_len` is full.
Its text is that of whole characters: bytes of one that is not complete are held back, whether it is
told in pieces or returned. It is not scrubbed here: whoever stores or shows it does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llm_core.config import ConfigError
from tasks.evaluation.drafts import open_draft
from tasks.evaluation.models import open_models
from tasks.tokenizer.text_stream import TextStream

if TYPE_CHECKING:
    from llm_core.infer.choice.sampling import SamplingParams
    from llm_core.infer.speculative import Draft
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer


@dataclass(frozen=True)
class Answer:
    """What follows a prompt, and whether it stopped because the model reads no further."""

    text: str
    num_tokens: int
    reached_max_seq_len: bool


def generate_text(
    model_folder: Path,
    tokenizer_folder: Path,
    prompt: str,
    params: SamplingParams,
    max_new_tokens: int = 128,
    on_text: Callable[[str], None] | None = None,
    device: str = "auto",
    stop_strings: Sequence[str] = (),
    tensor_parallel: int = 1,
    draft: str | None = None,
) -> Answer:
    """The continuation of `prompt`, up to and without the first stop string. `on_text` gets each
    new piece of whole characters at once. draft: what guesses tokens (`tasks.evaluation.drafts`).

    Raises ConfigError where the prompt leaves no room for an answer.
    """
    import torch

    from llm_core.device import decode_threads
    from llm_core.huggingface.export import read_shape
    from tasks.tokenizer.encoder import load_tokenizer

    # Opened before the model is read, so that a device that is not there is an error at once.
    with (
        open_models(tensor_parallel, device) as models,
        decode_threads(read_shape(model_folder).num_parameters()),
    ):
        model = models.load(model_folder, torch.float32)
        tokenizer = load_tokenizer(tokenizer_folder)
        ids = tokenizer.encode(prompt).tolist()
        (limit,) = answer_limits(model, tokenizer, [ids], max_new_tokens)
        ends = eos_ids(model_folder, model, tokenizer)
        stream, pieces, num_tokens = TextStream(tokenizer, ids, stop_strings), list[str](), 0

        def tell(piece: str) -> None:
            pieces.append(piece)
            if piece and on_text is not None:
                on_text(piece)

        guesses = None if draft is None else open_draft(draft, model, tokenizer)
        for token in _tokens(model, begin(tokenizer, ids), params, limit, ends, guesses):
            num_tokens += 1
            tell(stream.add([token]))
            if stream.stop is not None:
                break
        tell(stream.end())
    is_full = num_tokens == limit < max_new_tokens and stream.stop is None
    return Answer("".join(pieces), num_tokens, is_full)


def _tokens(
    model: Transformer,
    ids: Sequence[int],
    params: SamplingParams,
    limit: int,
    ends: Sequence[int],
    draft: Draft | None,
) -> Iterator[int]:
    from llm_core.infer.engine import Engine, EngineConfig
    from llm_core.infer.speculative import speculate

    if draft is not None:
        for each in speculate(model, ids, params, limit, draft, ends):
            yield from each.ids
        return
    room = EngineConfig.holding([len(ids) + limit], model.config.common_window)
    engine = Engine(model, room, ends)
    if limit:
        engine.submit(ids, params, limit)
    while engine.busy:
        yield from (new.id for new in engine.step() if new.id is not None)


def generate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    max_new_tokens: int,
    ends: Sequence[int],
    stop_strings: Sequence[str] = (),
) -> list[Answer]:
    """The continuations of encoded prompts; the random stream of a prompt depends on the seed and
    its number. ends: ids that end an answer (`eos_ids`). stop_strings: where the text of an answer
    is cut; tokens after the cut are counted.

    Raises ConfigError where a prompt leaves no room for an answer.
    """
    from llm_core.infer.generation import generate

    limits = answer_limits(model, tokenizer, prompts, max_new_tokens)
    begun = [begin(tokenizer, prompt) for prompt in prompts]
    answers = []
    for prompt, ids, limit in zip(
        prompts, generate(model, begun, params, limits, ends), limits, strict=True
    ):
        stream = TextStream(tokenizer, prompt, stop_strings)
        text = stream.add(ids) + stream.end()
        answers.append(Answer(text, len(ids), len(ids) == limit < max_new_tokens))
    return answers


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
