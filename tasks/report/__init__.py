"""Writes the report page. Read `stage.py`, then `overview.py`; a section is one module."""
