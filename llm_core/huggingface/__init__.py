"""Reads and writes models in the Hugging Face layout. Read `export.py`."""
