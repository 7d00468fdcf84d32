"""The templates of work pools are ones that Prefect's own workers take."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from prefect.utilities.templating import apply_values
from prefect.workers.base import BaseJobConfiguration
from prefect.workers.process import ProcessJobConfiguration
from prefect_docker.worker import DockerWorkerJobConfiguration
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from tasks.runtime.code import ROOT

POOLS: dict[str, type[BaseJobConfiguration]] = {
    "process": ProcessJobConfiguration,
    "docker": DockerWorkerJobConfiguration,
    "kubernetes": KubernetesWorkerJobConfiguration,
}
COMMAND = "prefect flow-run execute"


def template(kind: str) -> dict[str, Any]:
    return dict(json.loads((ROOT / f"examples/work_pools/{kind}.json").read_text("utf-8")))


def configuration(kind: str, **given: Any) -> Any:
    """What a worker makes of the template, its defaults and the values of a deployment."""
    fields = template(kind)["variables"]["properties"]
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    values = {"name": "run", "command": COMMAND, "env": {}, "labels": {}} | defaults | given
    job = apply_values(template(kind)["job_configuration"], values, remove_notset=True)
    return POOLS[kind](**job)


@pytest.mark.parametrize("kind", POOLS)
def test_every_variable_of_a_template_is_declared_used_and_explained(kind: str) -> None:
    found = template(kind)
    jsonschema.Draft202012Validator.check_schema(found["variables"])
    used = set(re.findall(r"{{ (\w+) }}", json.dumps(found["job_configuration"])))
    declared = found["variables"]["properties"]
    assert used == set(declared)
    assert all(field["description"] for field in declared.values())


@pytest.mark.parametrize("kind", POOLS)
def test_the_worker_of_a_pool_takes_its_template(kind: str) -> None:
    made = configuration(kind, env={"A": "b"})
    assert made.command == COMMAND and made.env["A"] == "b"


def test_the_pod_of_a_flow_is_one_by_the_strict_schema_with_the_volume_and_time_to_save() -> None:
    made = configuration("kubernetes", resources={"nvidia.com/gpu": "1"}, grace_s=300)
    job = json.loads(json.dumps(made.job_manifest))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    # The worker itself turns these two into lists.
    container |= {"args": COMMAND.split(), "env": []}
    kubernetes_validate.validate(job, "1.31", strict=True)
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 300


def test_pods_are_as_the_image_has_its_user_and_places() -> None:
    built = (ROOT / "Dockerfile").read_text("utf-8")
    pod = configuration("kubernetes").job_manifest["spec"]["template"]["spec"]
    assert f"--uid {pod['securityContext']['runAsUser']} textmill" in built
    assert f"WORKDIR {pod['containers'][0]['workingDir']}\n" in built
