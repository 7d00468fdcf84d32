"""Two GPUs compute what one does, and a rank that dies ends the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm_core.huggingface.export import export_model, load_model
from llm_core.infer.cache.rows import paged_cache, static_cache
from llm_core.infer.choice.sampling import GREEDY
from llm_core.infer.equivalence import Shape, check_cache
from llm_core.infer.generation import generate
from llm_core.infer.ranks.team import open_models
from tests.support.engine.rank_programs import start_pair
from tests.support.engine.small_model import make_model, random_ids

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def test_two_gpus_compute_what_one_does(tmp_path: Path) -> None:
    model = make_model(num_kv_heads=1)
    export_model(model.config, model.state_dict(), tmp_path)
    with open_models(2, "cuda") as models:
        shared = models.load(tmp_path, torch.float64)
        whole = load_model(tmp_path, torch.float64, "cuda")
        ids_BT = torch.tensor([random_ids(40, 1)], device="cuda")
        with torch.no_grad():
            found, expected = shared(ids_BT), whole(ids_BT)
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
        for make_cache in (static_cache, paged_cache):
            checks = check_cache(shared, [Shape(2, 6, 4)], 8, 0, make_cache)
            assert all(check.passed for check in checks), checks
        prompts = [random_ids(n, n) for n in (5, 12, 1)]
        assert generate(shared, prompts, GREEDY, 20) == generate(whole, prompts, GREEDY, 20)


def test_a_rank_that_dies_ends_the_other_within_a_minute(tmp_path: Path) -> None:
    model = make_model()
    export_model(model.config, model.state_dict(), tmp_path)
    killed = (
        "import threading\n"
        "threading.Timer(0.5, lambda: os.kill(pids()[0], signal.SIGKILL)).start()\n"
        "while True: generate(model, [[1, 2, 3]], GREEDY, 40)"
    )
    _, said = start_pair(tmp_path, killed, "cuda").communicate(timeout=120)
    assert "RankLost: rank 1 of 2 was ended by SIGKILL" in said.splitlines()[-1]
