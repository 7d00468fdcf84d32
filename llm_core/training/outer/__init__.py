"""Lets runs that train alone meet now and then (local SGD, DiLoCo). Begin with `diloco`."""
