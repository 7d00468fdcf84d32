"""Writes the objects that Kubernetes is given: a Job for one node, a JobSet for several.

A program that was asked to stop and has saved ends with code 75. Its pod is then replaced and
counts as no failure, as does one that lost its node; a code of 2 ends the job. Of a JobSet, whose
nodes need each other, all pods are replaced together. Fields: the API reference of Kubernetes 1.31
(batch/v1) and of JobSet 0.10 (jobset.x-k8s.io/v1alpha2).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import Job

FOLDER_ANNOTATION = "textmill/folder"
KEPT_S = 24 * 3600
"""A finished job is removed after so long."""
END_EXTRA_S = 30
REPLICATED = "node"
# All pod failure policies give a Job one reason; only its message names the exit code.
REFUSED = "exit code 2 matching FailJob rule"
# Further nodes write files of their own: a shared file system has no common append.
RUN = """log=$1; shift
[ "${JOB_COMPLETION_INDEX:-0}" = 0 ] || log=$log.$JOB_COMPLETION_INDEX
exec "$@" >> "$log" 2>&1"""


def manifest(job: Job, config: ClusterConfig) -> dict[str, Any]:
    """The object of a job, as plain values."""
    about = {
        "name": job.name,
        "namespace": config.kubernetes.namespace,
        "labels": {"app.kubernetes.io/managed-by": "textmill", **config.kubernetes.labels},
        "annotations": {FOLDER_ANNOTATION: str(job.folder)},
    }
    if config.num_nodes == 1:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": about,
            "spec": _job(job, config) | {"ttlSecondsAfterFinished": KEPT_S},
        }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": about,
        "spec": {
            "ttlSecondsAfterFinished": KEPT_S,
            # The nodes look for the first one before it is ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": job.max_restarts,
                # The first rule that matches counts.
                "rules": [
                    {
                        "name": "refused",
                        "action": "FailJobSet",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                        "onJobFailureMessagePatterns": [REFUSED],
                    },
                    {
                        "name": "saved",
                        "action": "RestartJobSetAndIgnoreMaxRestarts",
                        "onJobFailureReasons": ["PodFailurePolicy"],
                    },
                ],
            },
            "replicatedJobs": [
                {"name": REPLICATED, "replicas": 1, "template": {"spec": _job(job, config)}}
            ],
        },
    }


def _job(job: Job, config: ClusterConfig) -> dict[str, Any]:
    """The spec of a Job."""
    several = config.num_nodes > 1
    saved: dict[str, Any] = {
        "onExitCodes": {"containerName": "main", "operator": "In", "values": [os.EX_TEMPFAIL]}
    }
    disrupted: dict[str, Any] = {
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]
    }
    refused: dict[str, Any] = {
        "onExitCodes": {"containerName": "main", "operator": "In", "values": [2]},
        "action": "FailJob",
    }
    # Of a JobSet this failure restarts all pods; any other one counts (backoffLimit).
    again = "FailJob" if several else "Ignore"
    spec: dict[str, Any] = {
        "parallelism": config.num_nodes,
        "completions": config.num_nodes,
        "backoffLimit": 0 if several else job.max_restarts,
        "podFailurePolicy": {
            "rules": [saved | {"action": again}, disrupted | {"action": again}, refused]
        },
        "template": {"spec": _pod(job, config)},
    }
    if several:
        spec["completionMode"] = "Indexed"
    if config.time_limit_min is not None:
        spec["activeDeadlineSeconds"] = 60 * config.time_limit_min
    return spec


def _pod(job: Job, config: ClusterConfig) -> dict[str, Any]:
    cluster, several = config.kubernetes, config.num_nodes > 1
    amounts: dict[str, Any] = {}
    if config.cpus_per_node is not None:
        amounts["cpu"] = str(config.cpus_per_node)
    if config.memory_gb_per_node is not None:
        amounts["memory"] = str(math.ceil(config.memory_gb_per_node * 1e9))
    limits = amounts | ({"nvidia.com/gpu": str(job.num_gpus)} if job.num_gpus else {})
    variables = dict(cluster.env)
    if several:  # the first pod's name within the set's own network
        variables = {"MASTER_ADDR": f"{job.name}-{REPLICATED}-0-0.{job.name}", **variables}
    container = {
        "name": "main",
        "image": cluster.image,
        "command": ["bash", "-c", RUN, "textmill", str(job.log)],
        "args": list(job.command),
        "workingDir": str(job.folder),
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "resources": {"requests": limits, "limits": limits},
        "volumeMounts": [
            {"name": "work", "mountPath": str(cluster.mount)},
            {"name": "shm", "mountPath": "/dev/shm"},
        ],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.grace_s) + END_EXTRA_S,
        "containers": [container],
        "volumes": [
            {"name": "work", "persistentVolumeClaim": {"claimName": cluster.claim}},
            # Processes of a node exchange through it; the default of 64 MB is too small.
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    return _overlaid(pod, cluster.pod)


def _overlaid(below: Any, above: Any) -> Any:
    """Mappings are merged, anything else is replaced."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{name: _overlaid(below.get(name), value) for name, value in above.items()}}
