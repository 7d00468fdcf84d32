"""Splits sequences over processes: ring attention and all-to-all. Read `context.py`."""
