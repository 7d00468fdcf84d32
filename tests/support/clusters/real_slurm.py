"""A real Slurm cluster of two nodes on this machine, from Debian's slurmctld and slurmd: loopback,
no munge, no accounting, everything below one folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.services.processes import descendants
from tests.support.distributed.processes import free_port

NODES = ("n1", "n2")


def is_installed() -> bool:
    return all(shutil.which(name, path=_path()) for name in ("slurmctld", "slurmd", "sbatch"))


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Path]:
    """The path of its slurm.conf, for SLURM_CONF."""
    folder.mkdir()
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(_conf(folder), "utf-8")
    environment = os.environ | {"SLURM_CONF": str(conf), "PATH": _path()}
    commands = [["slurmctld", "-D", "-c", "-i"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    with (folder / "daemons.log").open("wb") as log:
        daemons = [
            subprocess.Popen(
                [*command, "-f", str(conf)], env=environment, stdout=log, stderr=log, cwd=folder
            )
            for command in commands
        ]
        try:
            _wait_for_nodes(environment, folder)
            yield conf
            subprocess.run(["scancel", "--user=root", "--full"], env=environment, check=False)
        finally:
            left = descendants([daemon.pid for daemon in daemons])
            for daemon in daemons:
                daemon.send_signal(signal.SIGTERM)
            for daemon in daemons:
                daemon.wait(30)
            for pid in left:
                if Path(f"/proc/{pid}").exists():
                    os.kill(pid, signal.SIGKILL)


def start_now(job_id: str) -> None:
    """Let a requeued job start soon: Slurm has it wait until its old credentials expire."""
    time.sleep(2)  # for the end of its first script, which must not count as that of the next
    subprocess.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now"], check=True)


def _wait_for_nodes(environment: dict[str, str], folder: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        command = ["sinfo", "--noheader", "--Node", "--format=%T"]
        said = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False
        ).stdout
        if said.split() == ["idle"] * len(NODES):
            return
        time.sleep(0.2)
    raise AssertionError((folder / "daemons.log").read_text("utf-8", "replace")[-3000:])


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


def _conf(folder: Path) -> str:
    ports = [free_port() for _ in ("controller", *NODES)]
    nodes = "\n".join(
        f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=2"
        f" RealMemory=2000"
        for node, port in zip(NODES, ports[1:], strict=True)
    )
    return f"""ClusterName=textmill
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
KillWait=10
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES State=UP
"""
