"""Measures how fast a trained model answers. Read `stage.py` (the whole), `proof.py` (what must be
right first), `loads.py` and `http_load.py` (requests that come and wait), then `compare.py`."""
