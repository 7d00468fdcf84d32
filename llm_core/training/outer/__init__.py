"""Runs that train apart and meet now and then (local SGD, DiLoCo). Begin with `diloco`."""
