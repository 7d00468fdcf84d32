"""Splits layers over processes and runs schedules. Read `stages.py`, then `pipeline.py`."""
