"""Writes a model with weights in 8 or 4 bits, and measures what that costs in bits per byte.

Both models are scored on the same validation documents of a run, by the settings of its evaluation;
a folder from elsewhere has none, and is written without. In: a model folder. Out: a folder that
`llm_core.huggingface.export.load_model` reads, with the tokenizer and the settings of generation
beside it. Cost: two evaluations, and memory for one model at a time.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_core.config import ConfigError
from tasks.evaluation.config import EvaluateConfig, QuantizeConfig
from tasks.evaluation.held_out import check_round_trip, choose_documents, choose_window
from tasks.runtime.artifact import Artifact

if TYPE_CHECKING:
    import numpy as np

    from llm_core.infer.bits_per_byte import WindowPolicy
    from llm_core.model.transformer import Transformer
    from tasks.tokenizer.encoder import Tokenizer

BESIDE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files of a model folder that are copied as they are."""


@dataclass(frozen=True)
class Validation:
    """Documents that both models are scored on."""

    tokenizer: Tokenizer
    tokens: Sequence[np.ndarray]
    num_bytes: int
    windows: tuple[int, int]
    """(tokens of a window, of those the ones that only give context)."""
    batch_tokens: int
    policy: WindowPolicy

    @classmethod
    def of(
        cls,
        documents: Artifact,
        tokenizer: Artifact,
        shards: Artifact,
        train: Artifact,
        model: Transformer,
        config: EvaluateConfig,
    ) -> Validation:
        """Those that the evaluation of a run scores."""
        import numpy as np

        from llm_core.data.shards import open_shards
        from tasks.tokenizer.encoder import load_tokenizer

        codec, validation = load_tokenizer(tokenizer.path), open_shards(shards.path, "validation")
        validation.check_ids(model.config.vocab_size)
        chosen, _ = choose_documents(validation, config)
        check_round_trip(documents, codec, chosen)
        tokens = [np.asarray(d.tokens[: config.max_document_tokens], np.int64) for d in chosen]
        num_bytes = sum(int(codec.bytes_per_token[each].sum()) for each in tokens)
        windows = choose_window(train, model, config)
        return cls(codec, tokens, num_bytes, windows, config.batch_tokens, config.windows)

    def bits_per_byte(self, model: Transformer) -> float:
        """As the evaluation has it: the bits of closing end-of-texts are left out."""
        from llm_core.infer.bits_per_byte import score_documents

        eos = self.tokenizer.eos_id
        sizes = *self.windows, self.batch_tokens, self.policy
        bits = score_documents(model, self.tokens, eos, *sizes)
        texts = (b[t != eos] for b, t in zip(bits, self.tokens, strict=True))
        return math.fsum(math.fsum(text) for text in texts) / self.num_bytes


def quantize_folder(
    folder: Path,
    out: Path,
    config: QuantizeConfig,
    evaluated: tuple[Artifact, Artifact, Artifact, Artifact] | None,
    scoring: EvaluateConfig,
) -> dict[str, Any]:
    """Write `out`; what was read and written, in bytes and, where there are validation documents,
    in bits per byte.

    evaluated: (documents, tokenizer, shards, train) of the run whose model `folder` is. Raises
    ConfigError for a folder whose weights are rounded already or cannot be, and where `out` exists.
    """
    from llm_core.device import choose_device
    from llm_core.huggingface.export import load_model
    from llm_core.huggingface.files import read_values
    from llm_core.huggingface.rounded import is_rounded, write_rounded
    from llm_core.quantize.model import num_bytes

    if out.exists():
        raise ConfigError(f"out ({out}) exists already; name a new folder")
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"{out.absolute().parent} is not a folder; make it, or name another out")
    values = read_values(folder)
    if is_rounded(values):
        raise ConfigError(f"the weights of {folder} are already quantized; give the original model")
    device = choose_device(config.device)
    report: dict[str, Any] = {"folder": str(out), "format": config.format}
    validation = None
    if evaluated is not None:
        before = load_model(folder, device=device)
        validation = Validation.of(*evaluated, before, scoring)
        report["bits_per_byte_before"] = validation.bits_per_byte(before)
        del before  # memory is for one of them
    after = load_model(folder, device=device, weights=config.format)
    report |= {"stored_bytes_before": _stored_bytes(folder), "weight_bytes": num_bytes(after)}
    if validation is not None:
        report["bits_per_byte_after"] = validation.bits_per_byte(after)
        ratio = report["bits_per_byte_after"] / report["bits_per_byte_before"]
        report["more_bits_frac"] = ratio - 1
        report["documents"] = len(validation.tokens)
    out.mkdir()
    for name in BESIDE:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    write_rounded(after, values, out)
    return report | {"stored_bytes_after": _stored_bytes(out)}


def _stored_bytes(folder: Path) -> int:
    from llm_core.huggingface.files import weight_files

    return sum(file.stat().st_size for file in weight_files(folder))
