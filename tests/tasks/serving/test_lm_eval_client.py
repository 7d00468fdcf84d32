"""The evaluation harness reads log-probabilities and answers of a server through its own client
(`local-completions`), where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.evaluation.harness import harness_model, own_score, run_harness
from tests.support.served_models import NAME, publish_model, served

pytestmark = pytest.mark.filterwarnings("ignore")

RECORDS = [
    {"prompt": f"the {word}", "choices": ["list of", "king", "a b c"], "answer": n % 3}
    for n, word in enumerate(["apache", "house", "line", "lord"])
]
TASK = {
    "output_type": "multiple_choice",
    "doc_to_text": "prompt",
    "doc_to_choice": "choices",
    "doc_to_target": "answer",
    "target_delimiter": " ",
    "metric_list": [{"metric": name} for name in ("acc", "acc_norm", "acc_bytes")],
}


def test_the_harness_scores_a_served_model_as_it_scores_the_model_itself(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    folder = publish_model(tmp_path / "model")
    with served(folder) as server:
        client: Any = LocalCompletionsAPI(
            base_url=f"{server.url}/v1/completions",
            model=NAME,
            tokenizer=str(folder),
            tokenizer_backend="huggingface",
            add_bos_token=True,
            max_length=512,
        )
        over_http, samples = run_harness(client, RECORDS, TASK)
        engine, tokenizer = server.service.worker._engine, server.service.tokenizer
        lm = harness_model(engine.model, tokenizer, 512, own_score(engine.model, 2000))
        here, expected = run_harness(lm, RECORDS, TASK)
    for metric in ("acc,none", "acc_norm,none", "acc_bytes,none"):
        assert over_http[metric] == here[metric]
    for sample, own in zip(samples, expected, strict=True):
        for (told,), (right,) in zip(sample["resps"], own["resps"], strict=True):
            assert told[0] == pytest.approx(right[0], abs=1e-4)
            assert told[1] == right[1]
