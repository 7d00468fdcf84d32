"""With `mask_documents` a document trains and validates as if it were alone in its row."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from llm_core.data.config import DataConfig
from llm_core.data.loader import Loader
from llm_core.data.shards import open_shards
from llm_core.model.transformer import Transformer
from llm_core.training.metric_log import read_rows, training_rows
from llm_core.training.validate import read_validation_set
from tasks.runtime.code import ROOT
from tests.support.engine.small_runs import (
    MODEL,
    VOCAB_SIZE,
    run_config,
    write_config,
    write_token_shards,
)
from tests.support.engine.uneven_model import make_model

DOCUMENT_TOKENS = 9


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(MODEL, dtype=torch.float64)


@pytest.mark.parametrize("packing", ["concat", "best_fit", "one_per_row"])
def test_each_document_of_a_packed_batch_has_the_logits_it_has_alone(
    packing: str, model: Transformer, tmp_path: Path
) -> None:
    shards = open_shards(write_token_shards(tmp_path, 12, DOCUMENT_TOKENS), "train")
    loader = Loader(shards, 32, 3, seed=1, data=DataConfig(packing=packing, mask_documents=True))  # type: ignore[arg-type]
    ids_BT, _, documents_BT, *_ = loader.batch(0)
    packed = model(ids_BT, documents_BK=documents_BT)
    pieces = 0
    for row in range(len(ids_BT)):
        for document in documents_BT[row].unique().tolist():
            places = documents_BT[row] == document
            torch.testing.assert_close(
                packed[row, places], model(ids_BT[row][places][None])[0], rtol=0, atol=1e-12
            )
            pieces += 1
    assert pieces > len(ids_BT)
    assert packing == "one_per_row" or (packed - model(ids_BT)).abs().max() > 1e-3


def test_validation_windows_begin_a_document_after_each_end_of_text(tmp_path: Path) -> None:
    shards = open_shards(write_token_shards(tmp_path, 12, DOCUMENT_TOKENS), "validation")
    data = read_validation_set(
        shards, 16, 100, np.ones(VOCAB_SIZE, np.int32), DataConfig(mask_documents=True)
    )
    assert data.documents_BT is not None
    begins = data.documents_BT.diff(dim=1) > 0
    assert torch.equal(begins, data.ids_BT[:, 1:] == shards.eos_id) and begins.sum() > 5
    assert read_validation_set(shards, 16, 100, np.ones(VOCAB_SIZE, np.int32)).documents_BT is None


@pytest.mark.slow
def test_a_run_over_a_pipeline_and_slices_ends_as_a_run_of_one_process(tmp_path: Path) -> None:
    data = DataConfig(packing="best_fit", mask_documents=True)
    alone = run_config(tmp_path, train={"data": data, "micro_batch_sequences": 1})
    over = dataclasses.replace(
        alone,
        parallel=dataclasses.replace(
            alone.parallel, kind="fsdp", num_processes=4, pp=2, cp=2, cp_balanced=True
        ),
    )
    for name, config in (("alone", alone), ("over", over)):
        launcher = ["-m"]
        if config.parallel.num_processes > 1:
            launcher = [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={config.parallel.num_processes}",
                "-m",
            ]
        (tmp_path / name).mkdir()
        files = [
            "--config",
            str(write_config(tmp_path / f"{name}.json", config)),
            "--workdir",
            str(tmp_path / name),
        ]
        done = subprocess.run(
            [sys.executable, *launcher, "llm_core.training.train", *files],
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-3000:]
    one, other = (
        training_rows(read_rows(tmp_path / name / "metrics.jsonl")) for name in ("alone", "over")
    )
    assert [row["step"] for row in one] == [row["step"] for row in other]
    for a, b in zip(one, other, strict=True):
        assert all(abs(a[key] - b[key]) <= 2e-5 * abs(a[key]) for key in a), (a, b)
    weights, others = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("alone", "over")
    )
    assert weights.keys() == others.keys()
    assert (
        max(float((weights[k] - others[k]).abs().max() / weights[k].abs().max()) for k in weights)
        < 1e-2
    )
    assert json.loads((tmp_path / "over" / "status.json").read_text())["num_processes"] == 4
