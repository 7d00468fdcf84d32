"""Measures prefill, decoding and loads. Read `answers.py` (what must be right first),
`generation.py` (the grid), `load.py` (requests that come and wait), then `latency.py`."""
