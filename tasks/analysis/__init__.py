"""Measures a corpus by scale, quality and diversity. Read `stage.py`, then `snapshots.py`."""
