"""Scores documents by classifiers and language models. Read `stage.py`, then `learning.py`."""
