"""Explains what happened to one document, and replays quality rules with other thresholds. Read
`explain.py`; `replay.py` stands alone."""
