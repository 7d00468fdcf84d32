"""Schedulers for tests: a real Slurm of two nodes on this machine, and stand-ins for commands."""
