"""Finds personal data and says what replaces it. Read `stage.py`, `spans.py`, `checks.py`."""
