"""What does the model write? Text in, text out, for samples and for the command line.

A prompt is encoded and put behind the end-of-text id, the context every document starts from in training. The answer is
what follows, cut at end-of-text or at the token limit. It is not scrubbed here: whoever stores or shows it does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llm_core.infer.sampling import SamplingParams
    from llm_core.model.transformer import Transformer
    from tasks.encoder import Tokenizer


def generate_text(
    model_folder: Path,
    tokenizer_folder: Path,
    prompt: str,
    params: SamplingParams,
    max_new_tokens: int = 128,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """The continuation of `prompt`. `on_text` is told each new piece of whole characters as soon as it is there."""
    import codecs

    from llm_core.export import load_model
    from tasks.tokenizer import load_tokenizer

    model, tokenizer = load_model(model_folder), load_tokenizer(tokenizer_folder)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def on_token(_: int, token: int) -> None:
        piece = decoder.decode(tokenizer.decode_bytes([token]))
        if on_text is not None and piece:
            on_text(piece)

    return generate_texts(model, tokenizer, [tokenizer.encode(prompt).tolist()], params, max_new_tokens, on_token)[0]


def generate_texts(
    model: Transformer,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    max_new_tokens: int,
    on_token: Callable[[int, int], None] | None = None,
) -> list[str]:
    """The continuations of encoded prompts; the random stream of a prompt depends on the seed and its number."""
    from llm_core.infer.engine import generate

    begun = [[tokenizer.eos_id, *prompt] for prompt in prompts]
    return [tokenizer.decode(answer) for answer in generate(model, begun, params, max_new_tokens, tokenizer.eos_id, on_token)]
