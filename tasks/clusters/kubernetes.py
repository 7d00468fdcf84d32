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
        job_id = f"{self._resource}/{job.name}"
        if self._read(job_id):  # an earlier try that has ended
            self._call("delete", job_id, "--cascade=foreground", f"--timeout={CLEAR_S}s")
        self._call("create", "--filename=-", given=json.dumps(manifest(job, self._config)))
        return job_id

    def find(self, job: Job) -> str | None:
        job_id = f"{self._resource}/{job.name}"
        found = self._read(job_id)
        if not found or not _sighting(found).is_live:
            return None
        folder = found["metadata"].get("annotations", {}).get(FOLDER_ANNOTATION)
        if folder != str(job.folder):
            raise Refused(
                f"{job_id} is there and works in {folder}, not in {job.folder};"
                " wait for it or delete it"
            )
        return job_id

    def look(self, job_id: str) -> Sighting:
        found = self._read(job_id)
        if not found:
            return Sighting("gone", "vanished: somebody has deleted it")
        return _sighting(found)

    def stop(self, job_id: str) -> None:
        # Pods get SIGTERM and terminationGracePeriodSeconds; `look` says when all are gone.
        self._call("delete", job_id, *_NOT_WAITING, "--cascade=foreground")

    def kill(self, job_id: str) -> None:
        resource, _, name = job_id.partition("/")
        self._call("delete", "pod", f"--selector={_POD_LABELS[resource]}={name}", "--now")

    def _read(self, job_id: str) -> dict[str, Any]:
        said = self._call("get", job_id, "--ignore-not-found", "--output=json")
        return json.loads(said) if said.strip() else {}

    def _call(self, *arguments: str, given: str | None = None) -> str:
        namespace = f"--namespace={self._config.kubernetes.namespace}"
        return call(["kubectl", *arguments, namespace], given=given)


_NOT_WAITING = ("--ignore-not-found", "--wait=false")
_POD_LABELS = {
    "job": "batch.kubernetes.io/job-name",
    "jobset": "jobset.sigs.k8s.io/jobset-name",
}


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
