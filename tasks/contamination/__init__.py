"""Finds documents that contain items of benchmark suites. Read `stage.py`, `passes.py`, then
`suites.py`."""
