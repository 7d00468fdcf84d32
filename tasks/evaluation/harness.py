"""Holds our figures against those of the evaluation harness (lm-eval, `textmill[lm-eval]`): the
same items and prompts, its borders, metrics and windows, our model behind its `TemplateLM`.

Nothing is fetched: tasks are made here, with records from memory, and none of its own are read.
Where it defines a figure otherwise, an item may differ; each such item is listed with the reason:
it gives a tie to the first choice, cuts the tokens of an answer at the length of the prompt's even
where a token crosses the border, and drops the start of a text from a prompt that is too long.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_core.infer.cache.rows import place_of
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.score_plan import Continuation
from llm_core.infer.scoring import score_continuations
from tasks.corpus.documentset import read_table
from tasks.evaluation.generate import generate_texts
from tasks.evaluation.prompts import choice_texts, prompt_of
from tasks.evaluation.suite_parts import Judged, Load
from tasks.evaluation.suite_results import CHOICE_SCORES, ROWS_FILE, item_scores

if TYPE_CHECKING:
    from lm_eval.api.model import TemplateLM

    from llm_core.model.transformer import Transformer
    from tasks.evaluation.config import EvaluateConfig, EvaluateStageConfig
    from tasks.evaluation.held_out import Scored
    from tasks.evaluation.suites import Suite
    from tasks.tokenizer.encoder import Tokenizer

Pair = tuple[list[int], list[int]]
Score = Callable[[Sequence[Pair]], list[tuple[float, bool]]]
"""(context, answer) → (log-probability of the answer in nats, whether it is the greedy one)."""

NAMES = {"acc": "acc", "acc_chars": "acc_norm", "acc_bytes": "acc_bytes"}
"""Our metrics, and what the harness calls them."""
NAME = "textmill"
MAX_NEW_TOKENS = 256
"""Of an answer, where a task says nothing."""
TIE_NATS = 1e-4
"""Choices that float32 passes cannot tell apart."""
MOST_NATS = {"float64": 1e-6, "float32": 1e-3, "bfloat16": 1.0}
"""The most by which other batches, and the six decimals of rows, change a log-probability."""


def harness_model(
    model: Transformer, tokenizer: Tokenizer, window_tokens: int, score: Score
) -> TemplateLM:
    """Our model as the harness takes one. score: what gives its log-likelihoods."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    class OwnModel(TemplateLM):
        @property
        def eot_token_id(self) -> int:
            return tokenizer.eos_id

        def tok_encode(
            self, string: str, add_special_tokens: bool | None = None, **_: Any
        ) -> list[int]:
            start = [] if add_special_tokens is False else tokenizer.start_ids
            return [*start, *tokenizer.encode(string).tolist()]

        def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[tuple[float, bool]]:
            pairs = []
            for _, context, ids in requests:
                # Its rule: what is too long loses tokens on the left, the start of the text too.
                room = window_tokens + 1 - len(ids)
                pairs.append((context[-room:], ids))
            return score(pairs)

        def loglikelihood_rolling(self, requests: Any, **_: Any) -> list[float]:
            pairs: list[Pair] = []
            ends = []
            for request in requests:
                ids = tokenizer.encode(request.args[0]).tolist()
                windows = get_rolling_token_windows(ids, self.prefix_token_id, window_tokens, 1)
                pairs += map(make_disjoint_window, windows)
                ends.append(len(pairs))
            totals = [total for total, _ in score(pairs)]
            return [math.fsum(totals[a:b]) for a, b in pairwise([0, *ends])]

        def generate_until(self, requests: Any, **_: Any) -> list[str]:
            return [self._answer(*request.args) for request in requests]

        def _answer(self, context: str, wanted: Mapping[str, Any]) -> str:
            until = wanted.get("until", [])
            limit = min(int(wanted.get("max_gen_toks", MAX_NEW_TOKENS)), window_tokens // 2)
            room = window_tokens - limit - len(tokenizer.start_ids)
            ids = tokenizer.encode(context).tolist()[-room:]
            stop = [until] if isinstance(until, str) else until
            (answer,) = generate_texts(
                model, tokenizer, [ids], GREEDY, limit, [tokenizer.eos_id], stop
            )
            return answer.text

    return OwnModel()


def own_score(model: Transformer, batch_tokens: int) -> Score:
    """By `llm_core.infer.scoring`; requests of one context share it."""

    def score(pairs: Sequence[Pair]) -> list[tuple[float, bool]]:
        groups: dict[tuple[int, ...], list[Continuation]] = {}
        places = []
        for context, ids in pairs:
            group = groups.setdefault(tuple(context), [])
            places.append((tuple(context), len(group)))
            group.append(Continuation((*context, *ids), len(context)))
        scores = score_continuations(model, list(groups.values()), batch_tokens)
        known = dict(zip(groups, scores, strict=True))
        found = [known[context][place] for context, place in places]
        return [(float(each.logprobs.sum()), each.is_greedy) for each in found]

    return score


def run_harness(
    lm: TemplateLM, records: Sequence[Mapping[str, Any]], task: Mapping[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """(results, a sample of each record) of one task. task: what its YAML would say."""
    import datasets
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    known = {"task": NAME, "test_split": "test", "num_fewshot": 0}
    rows = {"test": datasets.Dataset.from_list([dict(each) for each in records])}
    asked: Any = known | {"custom_dataset": lambda **_: rows} | dict(task)
    manager = TaskManager(include_defaults=False)
    # Its progress bars would be drawn over ours; what goes wrong is raised.
    with contextlib.redirect_stderr(io.StringIO()):
        found: Any = simple_evaluate(
            lm, tasks=[asked], task_manager=manager, bootstrap_iters=0, log_samples=True
        )
    samples = sorted(found["samples"][NAME], key=lambda sample: sample["doc_id"])
    return found["results"][NAME], samples


def compare_suite(
    lm: TemplateLM,
    suite: Suite,
    rows: Sequence[Mapping[str, Any]],
    shots: int,
    seed: int,
    most_nats: float = MOST_NATS["float64"],
) -> dict[str, Any]:
    """Metrics of the harness beside ours, of the items that `rows` are of: `metrics`, the items
    that differ with the reason, and whether no other differs.

    most_nats: what a log-probability may differ by.
    """
    known = {item.id: item for item in suite.items}
    records = [
        {
            "prompt": prompt_of(suite, known[row["item"]], shots, seed),
            "choices": list(choice_texts(suite, known[row["item"]])),
            "answer": row["label"],
        }
        for row in rows
    ]
    task = {
        "output_type": "multiple_choice",
        "doc_to_text": "prompt",
        "doc_to_choice": "choices",
        "doc_to_target": "answer",
        "target_delimiter": suite.file.delimiter,
        "metric_list": [{"metric": name} for name in NAMES.values()],
    }
    results, samples = run_harness(lm, records, task)
    ours = item_scores(rows, list(NAMES))
    metrics = {}
    for metric, name in NAMES.items():
        value, theirs = float(ours[metric].mean()), float(results[f"{name},none"])
        metrics[metric] = {"value": value, "lm_eval": theirs, "difference": value - theirs}
    differing = [
        {"item": row["item"], "metric": metric, "own": own, "lm_eval": sample[name],
         "why": _why(row, metric, sample)}
        for metric, name in NAMES.items()
        for row, sample, own in zip(rows, samples, ours[metric].tolist(), strict=True)
        if own != sample[name]
    ]  # fmt: skip
    off = [
        abs(choice["logprob"] - float(response[0][0]))
        for row, sample in zip(rows, samples, strict=True)
        for choice, response in zip(row["choices"], sample["resps"], strict=True)
        if not row["is_truncated"] and not choice["is_merged"]
    ]
    worst = max(off, default=0.0)
    return {
        "metrics": metrics,
        "disagreements": differing,
        "worst_nats": worst,
        "agrees": all(each["why"] for each in differing) and worst <= most_nats,
    }


def add_harness(
    found: Mapping[str, dict[str, Any]],
    judged: Judged,
    config: EvaluateStageConfig,
    folder: Path,
    load: Load,
) -> None:
    """Put what the harness says beside the figures of each suite of choices; the rows of a model
    are those in `folder`."""
    scoring = config.evaluate
    model, tokenizer = load(judged.model, judged.tokenizer)
    most_nats = MOST_NATS[str(place_of(model)[0]).removeprefix("torch.")]
    lm = harness_model(
        model, tokenizer, judged.window_tokens, own_score(model, scoring.batch_tokens)
    )
    rows = read_table(folder / ROWS_FILE).to_pylist()
    for suite in config.suites.load():
        # There, all choices of an item have one prompt.
        if suite.file.kind == "choices" and not suite.file.columns.stems:
            mine = [r for r in rows if (r["model"], r["suite"]) == (judged.name, suite.name)]
            shots = found[suite.name]["shots"]
            about = shots, scoring.seed, most_nats
            found[suite.name]["lm_eval"] = compare_suite(lm, suite, mine, *about)


def compare_documents(
    model: Transformer,
    tokenizer: Tokenizer,
    scored: Scored,
    window_tokens: int,
    config: EvaluateConfig,
) -> dict[str, Any]:
    """Bits per byte of the harness beside ours, of the same texts in disjoint windows. Where our
    documents end with end-of-text, that takes a place of the last window."""
    tokens = [document.tokens for document in scored.documents]
    texts = [tokenizer.decode_bytes(t[t != tokenizer.eos_id]).decode() for t in tokens]
    score = own_score(model, config.batch_tokens)
    theirs = bits_per_byte(harness_model(model, tokenizer, window_tokens, score), texts)
    value = float(scored.bits["model"].sum() / scored.num_bytes.sum())
    return {"value": value, "lm_eval": theirs, "difference": value - theirs}


def bits_per_byte(lm: TemplateLM, texts: Iterable[str]) -> float:
    """That of the harness over whole texts."""
    task = {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "text",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    results, _ = run_harness(lm, [{"text": text} for text in texts], task)
    return float(results["bits_per_byte,none"])


def _why(row: Mapping[str, Any], metric: str, sample: Mapping[str, Any]) -> str | None:
    """Why an item may have another credit there; None: there is no reason."""
    scores = sorted(map(CHOICE_SCORES[metric], row["choices"]))
    if scores[-1] - scores[-2] <= TIE_NATS:
        return "tie"
    if any(choice["is_merged"] for choice in row["choices"]):
        return "merged border"
    if row["is_truncated"]:
        return "truncated"
    theirs = [float(response[0][0]) for response in sample["resps"]]
    choices = [{**c, "logprob": nats} for c, nats in zip(row["choices"], theirs, strict=True)]
    by_theirs = item_scores([{**row, "choices": choices}], [metric])[metric][0]
    return "rounding" if by_theirs == sample[NAMES[metric]] else None
