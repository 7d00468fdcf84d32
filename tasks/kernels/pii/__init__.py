"""Kernels that find candidates of personal data. Read `spans.py` first."""
