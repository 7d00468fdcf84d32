"""The model of a run is in MLflow with where it comes from, and writes what `textmill` writes."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from flows.tracking import models
from flows.tracking.mlflow_log import MlflowLog
from flows.tracking.models import Trained, log_model
from llm_core.infer.choice.sampling import SamplingParams
from tasks.evaluation.generate import generate_text
from tasks.tokenizer.encoder import export_hugging_face
from tests.support.data.trained_run import make_run
from tests.support.tracked_runs import Tracked

BYTES = 10**9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model and its tokenizer, as training exports them."""
    run = make_run(tmp_path_factory.mktemp("run"))
    export_hugging_face(run.tokenizer.path, run.train.path / "model")
    return run.train.path / "model"


@pytest.fixture
def log(database: str, tracked: Tracked, tmp_path: Path) -> MlflowLog:
    return MlflowLog(database, tracked.experiment, tmp_path)


def run_of(log: MlflowLog) -> str:
    return log.start("run", {}, "2026-01-01T00:00:00+00:00")


def best_version(log: MlflowLog) -> Any:
    return log.client.get_model_version_by_alias(models.registered_name(log.experiment), "best")


def trained(folder: Path, key: str) -> Trained:
    return Trained(key, folder, {"train": key, "shards": "s1"})


def judged(value: float, judge: str = "evaluate") -> dict[str, Any]:
    return {"val_bpb": value, "val_bpb_of": judge}


def test_a_loaded_model_gives_the_greedy_text_of_generate_without_network_and_pickle(
    log: MlflowLog, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mlflow import pyfunc
    from pandas import DataFrame

    log_model(log, run_of(log), trained(folder, "k1"), judged(2.0), BYTES)
    place = Path(best_version(log).source.removeprefix("file://"))
    names = {file.suffix for file in place.rglob("*") if file.is_file()}
    assert names & {".pkl", ".pickle", ".pt", ".bin"} == set() and ".safetensors" in names

    def refuse(*_: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    moved = shutil.copytree(place, tmp_path / "moved")
    loaded = pyfunc.load_model(str(moved))
    prompts = ["The ", "def main("]
    given = loaded.predict(DataFrame({"prompt": prompts}), params={"max_new_tokens": 12})
    greedy = SamplingParams(temperature=0.0)
    assert list(given) == [
        generate_text(folder, folder, prompt, greedy, 12).text for prompt in prompts
    ]
    assert loaded.metadata.signature.inputs.input_names() == ["prompt"]
    assert loaded.metadata.saved_input_example_info is not None
    assert loaded.metadata.metadata["store.keys"] == {"train": "k1", "shards": "s1"}


def test_a_model_beyond_the_limit_stays_in_the_store(log: MlflowLog, folder: Path) -> None:
    from mlflow import pyfunc
    from pandas import DataFrame

    log_model(log, run_of(log), trained(folder, "k1"), judged(2.0), 10)
    place = Path(best_version(log).source.removeprefix("file://"))
    assert list(place.rglob("*.safetensors")) == []
    loaded = pyfunc.load_model(str(place))
    assert len(loaded.predict(DataFrame({"prompt": ["The "]}), params={"max_new_tokens": 2})) == 1


def test_best_goes_to_the_least_bits_per_byte_and_evaluate_goes_before_training(
    log: MlflowLog, folder: Path
) -> None:
    def best_after(key: str, value: float, judge: str) -> str:
        log_model(log, run_of(log), trained(folder, key), judged(value, judge), 0)
        return str(best_version(log).tags["store.key.train"])

    steps = [("a", 1.0, "train"), ("b", 1.2, "train"), ("c", 3.0, "evaluate")]
    assert [best_after(*step) for step in steps] == ["a", "a", "c"]
    assert best_after("d", 0.5, "train") == "c", "of another measure"
    assert best_after("e", 2.0, "evaluate") == "e"
    assert best_after("f", 2.0, "evaluate") == "e", "the newest of equals"
    assert best_after("e", 4.0, "evaluate") == "f", "the best was judged anew"


def test_a_model_that_is_found_again_is_linked_and_not_logged_again(
    log: MlflowLog, folder: Path
) -> None:
    first, second = run_of(log), run_of(log)
    for run_id in (first, second, second):
        log_model(log, run_id, trained(folder, "k1"), judged(2.0), 0)
    (model,) = log.client.search_logged_models([log.experiment_id])
    for run_id in (first, second):
        (output,) = log.client.get_run(run_id).outputs.model_outputs
        assert output.model_id == model.model_id
    name = models.registered_name(log.experiment)
    assert len(log.client.search_model_versions(f"name = '{name}'")) == 1
