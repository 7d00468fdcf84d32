"""Times the scoring of choices against the `hf` backend of the evaluation harness (lm-eval), with
automatic batch size, on the same token ids and weights, in turn.

`python -m benchmarks.engine.score` takes the items of our suites and the demo's model in float32,
or `--requests FILE --shape 1.1b` on a GPU in bfloat16: JSON lines, gzipped, of {"context": ids,
"choices": [ids, …]}. `--write FILE --suite DIR --tokenizer DIR` makes such a file. Weights are
random; ids beyond the vocabulary of the shape are folded into it.

Both sides get ids, so that tokenizers take no part. On a CPU the figures are processor time, which
a busy machine does not change; on a GPU seconds. Both are warmed up on other items, and each runs
`--repeats` times in turn; the figure is the median of the ratios. It is withheld unless our scores
of the first items are those of one plain pass per sequence in float64: within 1e-3 nats a token in
float32, and 0.05 on average in bfloat16.

The last line is JSON: {"ratio" (seconds of the harness over ours), "items", "continuations",
"tokens", "own_s", "peer_s", "correct", "nats_off", "peer_nats_off" (a token, on average),
"changed_frac", "peer_changed_frac" (of first items, where another choice wins than in float64)}.
`--peer none` times ours alone. Needs `textmill[lm-eval]`, accelerate and transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from benchmarks.engine.infer_folder import END, write_folder
from benchmarks.engine.infer_models import random_model, shape_config
from llm_core.device import choose_device, set_threads, synchronize
from llm_core.infer.score_plan import Continuation
from llm_core.infer.scoring import score_continuations
from llm_core.model.transformer import Transformer
from llm_core.printing import show

if TYPE_CHECKING:
    from tasks.tokenizer.encoder import Tokenizer

ROOT = Path(__file__).parents[2]
CHECKED_ITEMS = 100
WARM_ITEMS = 64
ALLOWED_NATS = {torch.float32: 1e-3, torch.bfloat16: 0.05}

Groups = Sequence[Sequence[Continuation]]
Score = Callable[[Groups], list[list[float]]]
"""Continuations of each item → their log-probabilities."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="demo")
    parser.add_argument("--requests", type=Path)
    parser.add_argument("--items", type=int, help="first ones; by default all")
    parser.add_argument("--suite", type=Path, default=ROOT / "data/suites")
    parser.add_argument("--tokenizer", type=Path, help="folder; by default one is trained")
    parser.add_argument("--shots", type=int, default=0)
    parser.add_argument("--write", type=Path, help="write the requests, and time nothing")
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peer", choices=("hf", "none"), default="hf")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if asked.requests:
            requests = read_requests(asked.requests)
        else:
            from tasks.tokenizer.encoder import load_tokenizer

            folder = asked.tokenizer or train_tokenizer(Path(name) / "tokenizer")
            requests = suite_requests(asked.suite, load_tokenizer(folder), asked.shots)
        requests = requests[: asked.items]
        if asked.write:
            write_requests(requests, asked.write)
        else:
            peer = asked.peer == "hf"
            show(json.dumps(compare(requests, asked, peer, Path(name) / "model")))


def compare(
    requests: Groups, asked: argparse.Namespace, has_peer: bool, folder: Path
) -> dict[str, Any]:
    """Time both sides on all requests."""
    device = choose_device("auto")
    set_threads(1, 1)  # more of them wait for each other where the machine is busy
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = random_model(shape_config(asked.shape), "bf16" if on_gpu else "float32", device)
    groups = [[folded(each, model.config.vocab_size) for each in group] for group in requests]
    size = asked.batch_tokens or (32768 if on_gpu else 8192)
    sides = [lambda groups: own_scores(model, groups, size)]
    if has_peer:
        sides.append(harness_scores(model, folder, dtype, device))
    exact = exact_scores(model, groups[:CHECKED_ITEMS])
    seconds: list[list[float]] = [[] for _ in sides]
    found: list[list[list[float]]] = [[] for _ in sides]
    clock = time.perf_counter if on_gpu else time.process_time
    for side in sides:
        side(groups[-WARM_ITEMS:])
    for repeat in range(asked.repeats):
        for number in range(len(sides)) if repeat % 2 else reversed(range(len(sides))):
            synchronize(device)
            began = clock()
            found[number] = sides[number](groups)
            synchronize(device)
            seconds[number].append(clock() - began)
    off = [difference(each, exact, groups) for each in found]
    is_correct = off[0]["nats_off"] <= ALLOWED_NATS[dtype]
    row: dict[str, Any] = {
        "model": asked.shape,
        "items": len(groups),
        "continuations": sum(map(len, groups)),
        "tokens": sum(len(each.ids) for group in groups for each in group),
        "own_s": round(statistics.median(seconds[0]), 3) if is_correct else None,
        "correct": is_correct,
        **off[0],
    }
    if has_peer:
        ratios = [theirs / ours for ours, theirs in zip(*seconds, strict=True)]
        row["peer_s"] = round(statistics.median(seconds[1]), 3)
        row["ratio"] = round(statistics.median(ratios), 3) if is_correct else None
        row["ratio_min"] = round(min(ratios), 3) if is_correct else None
        row |= {f"peer_{name}": value for name, value in off[1].items()}
    about = {"dtype": str(dtype), "threads": torch.get_num_threads(), "torch": torch.__version__}
    return row | about


def own_scores(model: Transformer, groups: Groups, batch_tokens: int) -> list[list[float]]:
    return [
        [float(each.logprobs.sum()) for each in group]
        for group in score_continuations(model, groups, batch_tokens)
    ]


def exact_scores(model: Transformer, groups: Groups) -> list[list[float]]:
    """Of one plain pass per sequence, in float64."""
    with model.norm.weight.device:
        precise = Transformer(model.config).double()
    precise.load_state_dict(model.state_dict())
    return [
        [float(each.logprobs.sum()) for each in group]
        for group in score_continuations(precise, groups, 1, shares_context=False)
    ]


def harness_scores(
    model: Transformer, folder: Path, dtype: torch.dtype, device: torch.device
) -> Score:
    from lm_eval.models.huggingface import HFLM

    write_folder(model, folder)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    lm = HFLM(str(folder), dtype=dtype, device=str(device), batch_size="auto")

    def score(groups: Groups) -> list[list[float]]:
        asked = [
            (("", ""), list(each.ids[: each.begin]), list(each.ids[each.begin :]))
            for group in groups
            for each in group
        ]
        answers = iter(lm._loglikelihood_tokens(asked, disable_tqdm=True))
        return [[next(answers)[0] for _ in group] for group in groups]

    return score


def difference(
    found: Sequence[Sequence[float]], exact: Sequence[Sequence[float]], groups: Groups
) -> dict[str, float]:
    """How far scores are from exact ones, in nats a token and in choices that win."""
    off, changed = [], []
    for mine, right, group in zip(found, exact, groups, strict=False):
        counts = [len(each.ids) - each.begin for each in group]
        off += [abs(a - b) / n for a, b, n in zip(mine, right, counts, strict=True)]
        changed.append(int(np.argmax(mine)) != int(np.argmax(right)))
    return {
        "nats_off": round(float(np.mean(off)), 7),
        "changed_frac": round(float(np.mean(changed)), 4),
    }


def folded(each: Continuation, vocab_size: int) -> Continuation:
    return Continuation(tuple(id % vocab_size for id in each.ids), each.begin)


def suite_requests(folder: Path, tokenizer: Tokenizer, shots: int) -> list[list[Continuation]]:
    """Every item of the suites of choices in a folder."""
    from tasks.evaluation.config import SuitesConfig
    from tasks.evaluation.prompts import choice_texts, encode_answer, prompt_of

    longest = 1 << 20
    return [
        [
            encode_answer(tokenizer, prompt, suite.file.delimiter + text, longest, item.id)
            .continuation
            for text in choice_texts(suite, item)
        ]
        for suite in SuitesConfig((folder,)).load()
        if suite.file.kind == "choices"
        for item in suite.items
        for prompt in [prompt_of(suite, item, shots, 0)]
    ]  # fmt: skip


def train_tokenizer(folder: Path) -> Path:
    """Byte-level BPE of the sample corpus, with as many ids as the demo's."""
    lines = (ROOT / "data/sample/sample.jsonl").read_text("utf-8").splitlines()
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=[END], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    return folder


def read_requests(file: Path) -> list[list[Continuation]]:
    with gzip.open(file, "rt") as lines:
        found = [json.loads(line) for line in lines]
    return [
        [Continuation((*each["context"], *ids), len(each["context"])) for ids in each["choices"]]
        for each in found
    ]


def write_requests(groups: Groups, file: Path) -> None:
    """Contexts of a group are alike but for merged borders, whose tokens go to the choices."""
    with gzip.open(file, "wt") as lines:
        for group in groups:
            begin = min(each.begin for each in group)
            ids = {"context": group[0].ids[:begin], "choices": [each.ids[begin:] for each in group]}
            lines.write(json.dumps(ids, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
