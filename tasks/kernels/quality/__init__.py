"""Kernels of quality features, C4 lines and keywords. Read `features.py` first."""
