"""Measures prefill and decoding of a model. Read `generation.py`."""
