"""Judges documents by rules on features, scores, keywords and URLs. Read `config.py`, `stage.py`,
then `rules.py`."""
