"""Runs a program as a job of Slurm or Kubernetes and follows it from here.

`config` has the settings, `job` what is submitted and how it is followed, `slurm` and `kubernetes`
the two schedulers, each spoken to by its own commands (`commands`), `manifest` the objects that
Kubernetes is given, `scheduler` picks one.
"""
