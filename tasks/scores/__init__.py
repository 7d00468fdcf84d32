"""Scores documents by classifiers and language models. Read `stage.py`, `learning.py`, then
`pools.py`."""
