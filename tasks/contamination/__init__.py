"""Finds documents that contain items of benchmark suites. Read `stage.py`, then `suites.py`."""
