"""Identifies the language of every document. Read `stage.py`."""
