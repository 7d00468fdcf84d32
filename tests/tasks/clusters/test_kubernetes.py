"""What Kubernetes is given is what its API accepts, and its answers are understood."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

from llm_core.config import ConfigError
from tasks.clusters.commands import Refused
from tasks.clusters.config import ClusterConfig, KubernetesConfig
from tasks.clusters.job import Job
from tasks.clusters.kubernetes import Kubernetes
from tasks.clusters.manifest import manifest
from tests.support.clusters.fake_commands import put_on_path

VERSION = "1.31"
FULL = ClusterConfig(
    "kubernetes",
    cpus_per_node=16,
    memory_gb_per_node=64,
    time_limit_min=90,
    kubernetes=KubernetesConfig(
        image="registry.local/textmill:1",
        namespace="lab",
        claim="shared",
        mount=Path("/work"),
        env={"NCCL_DEBUG": "INFO"},
        labels={"kueue.x-k8s.io/queue-name": "gpus"},
        pod={
            "nodeSelector": {"gpu": "h100"},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
        },
    ),
)
JOB = Job(
    "textmill-train-0a",
    Path("/work/store/x"),
    Path("/work/store/x/trainer.log"),
    ("python", "-m", "m", "a b"),
    {},
    8,
    120.0,
    2,
)


def pod_of(found: dict[str, Any]) -> dict[str, Any]:
    return found["spec"]["template"]["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("config", [FULL, ClusterConfig("kubernetes")], ids=["full", "plain"])
def test_a_job_is_one_by_the_strict_schema_of_its_version(config: ClusterConfig) -> None:
    kubernetes_validate.validate(manifest(JOB, config), VERSION, strict=True)


def test_the_schema_finds_a_field_that_is_not_there() -> None:
    wrong = manifest(JOB, FULL)
    pod_of(wrong)["terminationGraceSeconds"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_a_set_of_nodes_is_a_jobset_whose_jobs_fit_the_schema() -> None:
    found = manifest(JOB, replace(FULL, num_nodes=4))
    model = JobsetV1alpha2JobSet.from_dict(found)
    assert model is not None and model.spec is not None
    # Fields that the models do not know are lost on the way.
    known = json.loads(json.dumps(model.to_dict(), default=str))
    assert known["spec"].keys() == found["spec"].keys()
    for name in ("failurePolicy", "network"):
        assert known["spec"][name] == found["spec"][name]
    (nodes,) = found["spec"]["replicatedJobs"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "n"}, **nodes["template"]}
    kubernetes_validate.validate(job, VERSION, strict=True)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4
    assert job["spec"]["completionMode"] == "Indexed"
    environment = {e["name"]: e["value"] for e in pod_of(job)["containers"][0]["env"]}
    assert environment["MASTER_ADDR"] == "textmill-train-0a-node-0-0.textmill-train-0a"


def test_what_was_asked_for_is_in_the_pod() -> None:
    found = manifest(JOB, FULL)
    pod = pod_of(found)
    (container,) = pod["containers"]
    amounts = {"cpu": "16", "memory": "64000000000", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"requests": amounts, "limits": amounts}
    assert container["args"] == list(JOB.command), "words, and no line for a shell"
    assert pod["terminationGracePeriodSeconds"] > JOB.grace_s
    assert pod["nodeSelector"] == {"gpu": "h100"} and pod["volumes"][0]["name"] == "work"
    assert found["metadata"]["namespace"] == "lab"
    assert found["spec"]["activeDeadlineSeconds"] == 5400


def test_a_pod_that_saved_or_lost_its_node_is_replaced_and_a_refused_run_is_not() -> None:
    rules = manifest(JOB, FULL)["spec"]["podFailurePolicy"]["rules"]
    assert [(rule.get("onExitCodes", {}).get("values"), rule["action"]) for rule in rules] == [
        ([75], "Ignore"),
        (None, "Ignore"),
        ([2], "FailJob"),
    ]
    spec = manifest(JOB, replace(FULL, num_nodes=2))["spec"]
    rules = spec["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert {rule["action"] for rule in rules} == {"FailJob"}
    # As the controller of jobs words it (getFailJobMessage); its end names the rule.
    said = "Container main for pod lab/x failed with exit code {} matching FailJob rule at index 2"
    lost = "Pod lab/x has condition DisruptionTarget matching FailJob rule at index 1"
    assert action_of(spec, said.format(2)) == "FailJobSet"
    for again in (said.format(75), lost):
        assert action_of(spec, again) == "RestartJobSetAndIgnoreMaxRestarts", "however often"


def action_of(spec: dict[str, Any], message: str) -> str:
    """What a JobSet does about a job that failed by its pod failure policy: the first rule that
    matches."""
    for rule in spec["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if "PodFailurePolicy" in rule["onJobFailureReasons"] and any(
            re.search(pattern, message) for pattern in patterns
        ):
            return str(rule["action"])
    return "RestartJobSet"


def test_a_store_that_pods_would_not_see_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store .* must lie below cluster.kubernetes.mount"):
        FULL.require_shared(tmp_path, "store")


def answer(status: dict[str, Any], **metadata: Any) -> str:
    about = {"name": JOB.name, "annotations": {"textmill/folder": str(JOB.folder)}} | metadata
    found = {"metadata": about, "spec": {}, "status": status}
    return f"#!/bin/bash\ncat <<'END'\n{json.dumps(found)}\nEND\n"


def condition(kind: str, **more: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True", **more}]}


@pytest.mark.parametrize(
    ("said", "phase", "words"),
    [
        (answer({"active": 1, "ready": 0}), "queued", "is queued"),
        (answer({"active": 1, "ready": 0, "failed": 1}), "queued", "is queued (try 2)"),
        (answer({"active": 1, "ready": 1}), "running", "runs"),
        (answer({"replicatedJobsStatus": [{"ready": 1}]}), "running", "runs"),
        (answer({"ready": 1}, deletionTimestamp="now"), "running", "is being deleted"),
        (answer(condition("Complete")), "ended", "complete"),
        (answer(condition("Completed")), "ended", "complete"),
        (
            answer(condition("Failed", reason="DeadlineExceeded", message="too long")),
            "ended",
            "ended as failed (DeadlineExceeded: too long)",
        ),
        ("#!/bin/bash\n", "gone", "vanished"),
    ],
)
def test_an_object_says_how_its_job_stands(
    said: str, phase: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path / "bin", monkeypatch, kubectl=said)
    seen = Kubernetes(FULL).look(f"job/{JOB.name}")
    assert seen.phase == phase and words in seen.words


def test_a_job_of_the_same_name_in_another_folder_is_not_attached_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(tmp_path / "bin", monkeypatch, kubectl=answer({"ready": 1}))
    assert Kubernetes(FULL).find(JOB) == f"job/{JOB.name}"
    with pytest.raises(Refused, match="works in /work/store/x, not in /work/other"):
        Kubernetes(FULL).find(replace(JOB, folder=Path("/work/other")))
