"""Trains, imports and measures tokenizers. Read `stage.py`, then `encoder.py`."""
