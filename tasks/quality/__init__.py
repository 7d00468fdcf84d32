"""Judges documents by rules on features, scores, keywords and URLs. Read `stage.py`, then
`rules.py`."""
