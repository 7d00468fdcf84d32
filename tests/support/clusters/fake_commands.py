"""Puts stand-ins for a scheduler's commands on PATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

KUBECTL = f"""#!{sys.executable}
import json, os, signal, subprocess, sys, time
from pathlib import Path

STATE = Path(__file__).with_name("kubectl.state")
STATE.mkdir(exist_ok=True)
words = [word for word in sys.argv[1:] if not word.startswith("-")]
with STATE.joinpath("calls.jsonl").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")

def run(found):
    job = found["spec"]
    if found["kind"] == "JobSet":
        job = found["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = job["template"]["spec"]["containers"][0]
    pids = []
    for index in range(job["completions"]):
        given = {{one["name"]: one["value"] for one in container["env"]}}
        if found["kind"] == "JobSet":
            # No network of pods here: the first one listens on this machine.
            given |= {{"JOB_COMPLETION_INDEX": str(index), "MASTER_ADDR": "127.0.0.1"}}
        pod = subprocess.Popen(
            ["bash", "-c", 'trap : TERM; "$@"; echo $? > "$0"', f"{{STATE}}/code.{{index}}"]
            + container["command"] + container["args"],
            cwd=container["workingDir"], env=os.environ | given, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        pids.append(pod.pid)
    return pids

if words[0] == "create":
    found = json.load(sys.stdin)
    file = STATE / found["metadata"]["name"]
    if file.exists():
        sys.exit('Error from server (AlreadyExists): jobs.batch "x" already exists')
    file.write_text(json.dumps({{"object": found, "pids": run(found)}}))
    sys.exit()
file = STATE / words[1].partition("/")[2]
if not file.exists():
    sys.exit()
known = json.loads(file.read_text())
alive = [pid for pid in known["pids"] if Path(f"/proc/{{pid}}/cmdline").exists()
         and Path(f"/proc/{{pid}}/cmdline").read_bytes()]
if words[0] == "get":
    found = known["object"] | {{"status": {{"active": len(alive), "ready": len(alive)}}}}
    if known.get("deleted"):
        found["metadata"]["deletionTimestamp"] = "now"
        if not alive:
            file.unlink()
            sys.exit()
    elif not alive:
        codes = [one.read_text().strip() for one in sorted(STATE.glob("code.*"))]
        kind = "Complete" if set(codes) == {{"0"}} else "Failed"
        found["status"] = {{"conditions": [{{
            "type": kind, "status": "True", "reason": "Exit", "message": ",".join(codes)}}]}}
    print(json.dumps(found))
elif words[0] == "delete":
    for pid in alive:
        os.killpg(pid, signal.SIGTERM)
    if "--wait=false" in sys.argv:
        file.write_text(json.dumps(known | {{"deleted": True}}))
    else:
        file.unlink()
"""
"""Runs the containers of a Job or JobSet as processes here: no image, no volume, no network."""


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """{name: text of a program}; the folder comes first on PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in scripts.items():
        file = folder / name
        file.write_text(text, "utf-8")
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
