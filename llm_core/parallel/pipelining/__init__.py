"""Splits the layers over processes and runs their schedules. Read `stages.py`, then
`pipeline.py`."""
