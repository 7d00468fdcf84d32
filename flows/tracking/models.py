"""Logs the model of a run to MLflow, registers it, and moves the alias `best`.

A model is a version of the registered model that is named after the experiment. Its tags lead back:
`store.key.<stage>` names every artifact that it stands on. `best` is the version with the least
bits per byte, also after a version is evaluated again; a number of `evaluate` takes precedence over
one of training, which measures otherwise.
A model that an earlier run logged is linked, not logged again.
"""

from __future__ import annotations

import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.tracking.headline import OBJECTIVE
from flows.tracking.journal import Journal
from flows.tracking.mlflow_log import KEY_TAG, MlflowLog

CODE = Path(__file__).with_name("served.py")
PARAMS: Mapping[str, Any] = {
    "max_new_tokens": 128,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "seed": 0,
    "device": "auto",
}
"""Settings of generation and their defaults; at temperature 0 the likeliest token is taken."""
BEST = "best"
EXAMPLE = "The "
_ILLEGAL = re.compile(r"[/:.%\"']")
"""What names of registered models may not hold."""


@dataclass(frozen=True)
class Trained:
    """The model of a run: its folder, and the store keys of what it stands on."""

    key: str
    folder: Path
    lineage: Mapping[str, str]


def trained_model(journal: Journal) -> Trained | None:
    """The model that a run made or found."""
    stages = {event["stage"]: event for event in journal.events if event["kind"] == "stage"}
    if "train" not in stages:
        return None
    lineage = {name: event["key"] for name, event in stages.items() if name not in _AFTER}
    folder = Path(stages["train"]["path"]) / "model"
    return Trained(stages["train"]["key"], folder, lineage)


_AFTER = ("evaluate", "bench", "report")
"""Stages that judge a model, and are not part of it."""


def log_model(
    log: MlflowLog, run_id: str, model: Trained, headline: Mapping[str, Any], max_bytes: int
) -> None:
    """Log and register the model of a run. max_bytes: of the weights that are copied."""
    from mlflow.entities import LoggedModelOutput

    client = log.client
    known = client.search_logged_models(
        [log.experiment_id], f"tags.`{KEY_TAG}` = '{model.key}'", max_results=1
    )
    if known:
        model_id = str(known[0].model_id)
    elif not model.folder.exists():  # found in a shared store, and not copied here
        return
    else:
        model_id = _log(log, run_id, model, max_bytes)
    if not client.get_run(run_id).outputs.model_outputs:  # else an earlier try was told so
        client.log_outputs(run_id, [LoggedModelOutput(model_id, 0)])
    _register(log, run_id, model, model_id, headline)


def registered_name(experiment: str) -> str:
    """The registered model of an experiment."""
    return _ILLEGAL.sub("_", experiment)


def _log(log: MlflowLog, run_id: str, model: Trained, max_bytes: int) -> str:
    client = log.client
    tags = {KEY_TAG: model.key}
    created = client.create_logged_model(
        log.experiment_id, f"model-{model.key}", run_id, tags, model_type="causal-lm"
    )
    model_id = str(created.model_id)
    with tempfile.TemporaryDirectory() as folder:
        _save(Path(folder) / "model", model, run_id, model_id, max_bytes)
        client.log_model_artifacts(model_id, str(Path(folder) / "model"))
    client.finalize_logged_model(model_id, "READY")
    return model_id


def _save(target: Path, model: Trained, run_id: str, model_id: str, max_bytes: int) -> None:
    """An MLflow model of code, settings and safetensors."""
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from pandas import DataFrame

    kinds = {int: "long", float: "double", str: "string"}
    params = [ParamSpec(name, kinds[type(value)], value) for name, value in PARAMS.items()]
    signature = ModelSignature(
        Schema([ColSpec("string", "prompt")]), Schema([ColSpec("string")]), ParamSchema(params)
    )
    num_bytes = sum(file.stat().st_size for file in model.folder.rglob("*") if file.is_file())
    place: dict[str, Any] = {"artifacts": {"model": str(model.folder)}}
    if num_bytes > max_bytes:
        place = {"model_config": {"folder": str(model.folder)}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow about its own type hints, pandas about MLflow
        from mlflow.pyfunc import save_model

        save_model(
            str(target),
            python_model=str(CODE),
            mlflow_model=Model(run_id=run_id, model_id=model_id),
            signature=signature,
            input_example=DataFrame({"prompt": [EXAMPLE]}),
            pip_requirements=["textmill"],
            metadata={"store.keys": dict(model.lineage)},
            **place,
        )


def _register(
    log: MlflowLog, run_id: str, model: Trained, model_id: str, headline: Mapping[str, Any]
) -> None:
    from mlflow.exceptions import MlflowException

    client, name = log.client, registered_name(log.experiment)
    try:
        client.create_registered_model(name, description=f"Models of experiment {log.experiment}.")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    value, judge = headline.get(OBJECTIVE), headline.get(f"{OBJECTIVE}_of")
    tags = {f"store.key.{stage}": key for stage, key in model.lineage.items()}
    if value is not None:
        tags |= {OBJECTIVE: str(value), f"{OBJECTIVE}.of": str(judge)}
    found = [
        version
        for version in client.search_model_versions(f"name = '{name}'")
        if version.tags.get("store.key.train") == model.key
    ]
    if found:
        version = found[0].version
        for tag, text in tags.items():
            client.set_model_version_tag(name, version, tag, text)
    else:
        # Not `models:/…`, which the client would look up in its default store.
        source = client.get_logged_model(model_id).artifact_location
        version = client.create_model_version(
            name, source, run_id, tags=tags, model_id=model_id
        ).version
    if value is not None:
        _move_best(client, name, str(version))


def _move_best(client: Any, name: str, newest: str) -> None:
    """Give the alias to the best version; of several, to one that has it, else to the newest."""
    judged: dict[str, tuple[bool, float]] = {}
    holder = str(client.get_registered_model(name).aliases.get(BEST))
    for version in client.search_model_versions(f"name = '{name}'"):
        if OBJECTIVE in version.tags:
            by_training = version.tags.get(f"{OBJECTIVE}.of") != "evaluate"
            judged[str(version.version)] = by_training, float(version.tags[OBJECTIVE])
    least = min(judged.values())
    if judged.get(holder) != least:
        equals = [version for version, number in judged.items() if number == least]
        best = newest if newest in equals else equals[0]
        client.set_registered_model_alias(name, BEST, best)
