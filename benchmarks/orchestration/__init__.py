"""Measures what orchestration and tracking cost: `overhead.py`."""
