"""Runs jobs on Kubernetes by kubectl: as a Job, or as a JobSet of several nodes.

The object's name is the job's, so that a second submission of the same work is refused by the
cluster itself. Its pods are deleted from the foreground: the object is gone when they are.
"""

from __future__ import annotations

import json
from typing import Any

from tasks.clusters.commands import Refused, call
from tasks.clusters.config import ClusterConfig
from tasks.clusters.job import Job, Sighting
from tasks.clusters.manifest import FOLDER_ANNOTATION, manifest

CLEAR_S = 50
"""What an object of an earlier try has to go."""


class Kubernetes:
    """Jobs of the cluster that kubectl's current context names."""

    kind = "kubernetes"

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._resource = "job" if config.num_nodes == 1 else "jobset"

    def submit(self, job: Job) -> str:
        if self._read(job.name):  # an earlier try that has ended
            self._call(
                "delete", self._resource, job.name, "--cascade=foreground", f"--timeout={CLEAR_S}s"
            )
        self._call("create", "--filename=-", given=json.dumps(manifest(job, self._config)))
        return job.name

    def find(self, job: Job) -> str | None:
        found = self._read(job.name)
        if not found or not _sighting(found).is_live:
            return None
        folder = found["metadata"].get("annotations", {}).get(FOLDER_ANNOTATION)
        if folder != str(job.folder):
            raise Refused(
                f"{self._resource} {job.name} is there and works in {folder}, not in {job.folder};"
                " wait for it or delete it"
            )
        return job.name

    def look(self, job_id: str) -> Sighting:
        found = self._read(job_id)
        if not found:
            return Sighting("gone", "vanished: somebody has deleted it")
        return _sighting(found)

    def stop(self, job_id: str) -> None:
        # Pods get SIGTERM and terminationGracePeriodSeconds; `look` says when all are gone.
        self._call("delete", self._resource, job_id, *_NOT_WAITING, "--cascade=foreground")

    def kill(self, job_id: str) -> None:
        pods = "batch.kubernetes.io/job-name" if self._config.num_nodes == 1 else _SET_LABEL
        self._call("delete", "pod", f"--selector={pods}={job_id}", *_NOT_WAITING, "--now")

    def _read(self, name: str) -> dict[str, Any]:
        said = self._call("get", self._resource, name, "--ignore-not-found", "--output=json")
        return json.loads(said) if said.strip() else {}

    def _call(self, *arguments: str, given: str | None = None) -> str:
        namespace = f"--namespace={self._config.kubernetes.namespace}"
        return call(["kubectl", *arguments, namespace], given=given)


_NOT_WAITING = ("--ignore-not-found", "--wait=false")
_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"


def _sighting(found: dict[str, Any]) -> Sighting:
    status = found.get("status", {})
    for condition in status.get("conditions", []):
        if condition["status"] != "True":
            continue
        if condition["type"] in ("Complete", "Completed"):
            return Sighting("ended", "ended as complete")
        if condition["type"] == "Failed":
            why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
            return Sighting("ended", f"ended as failed ({why})")
    if found["metadata"].get("deletionTimestamp"):
        return Sighting("running", "is being deleted")
    jobs = status.get("replicatedJobsStatus") or [status]
    if any(job.get("ready") for job in jobs):
        return Sighting("running", "runs")
    tries = status.get("restarts", 0) or status.get("failed", 0)
    return Sighting("queued", f"is queued{f' (try {tries + 1})' if tries else ''}")
