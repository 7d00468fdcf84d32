"""Finds personal data and says what replaces it.

Read `config.py`, `stage.py`, `spans.py`, `checks.py`, `phones.py`; `scrub.py` is for excerpts.
"""
