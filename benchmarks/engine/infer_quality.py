"""Measures what a format of weights costs a trained model: bits per byte, against those as trained.

Speed can be measured on random weights, quality cannot. Texts are documents of the embedded corpus,
most of which the demo trains on, so only the difference counts. The kernels are those whose speed
is shown, in passes of many tokens; a step of one row gives the same bits.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import tokenizers
import torch

from benchmarks.engine.train import Row
from llm_core.device import choose_device
from llm_core.huggingface.export import load_model
from llm_core.infer.bits_per_byte import score_documents
from llm_core.quantize.formats import FORMATS

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "sample.jsonl"
DOCUMENTS, MOST_TOKENS, WINDOW = 40, 512, 512


def more_bits(folder: Path, weights: str) -> Row:
    """Bits per byte of a Hugging Face folder, as it is and with rounded weights, and by what share
    rounding raises them."""
    device = choose_device("auto")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = SAMPLE.read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines[:: len(lines) // DOCUMENTS]]
    tokens = [tokenizer.encode(text, add_special_tokens=False).ids[:MOST_TOKENS] for text in texts]
    num_bytes = sum(len(tokenizer.decode(ids).encode()) for ids in tokens)
    ends = json.loads((folder / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    start_id = ends[0] if isinstance(ends, list) else ends
    documents = [np.asarray(ids, np.int64) for ids in tokens if ids]
    found = []
    for each in (None, *(name for name in FORMATS if name == weights)):
        model = load_model(folder, dtype, device, each)
        window = min(WINDOW, model.config.max_seq_len)
        bits = score_documents(model, documents, start_id, window, window // 2, 8192)
        found.append(sum(float(each.sum()) for each in bits) / num_bytes)
    return {
        "bits_per_byte": round(found[-1], 6),
        "bits_per_byte_as_trained": round(found[0], 6),
        "more_bits_frac": round(found[-1] / found[0] - 1, 6),
    }
