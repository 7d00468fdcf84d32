"""Finds personal data and says what replaces it.

Read `config.py`, `stage.py`, `spans.py`, `checks.py`, `phones.py`; `scrub.py` is for excerpts.
`ner_folder.py`, `ner_model.py` and `ner_spans.py` are for a model that finds names.
"""
