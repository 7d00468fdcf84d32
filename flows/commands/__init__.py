"""Commands of `textmill` that are not flows. `entries.py` lists them."""
