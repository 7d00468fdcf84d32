"""Runs a program as a Slurm or Kubernetes job and follows it.

`config` has the settings, `job` what is submitted and how it is followed, `slurm` and `kubernetes`
the two schedulers, each spoken to by its own commands (`commands`), `manifest` the objects that
Kubernetes is given, `scheduler` picks one.
"""
