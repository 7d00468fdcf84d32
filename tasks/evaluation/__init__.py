"""Evaluates a trained model, generates text and measures speed. Read `stage.py`, then
`bench.py`."""
