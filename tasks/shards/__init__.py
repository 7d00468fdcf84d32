"""Tokenizes documents into Arrow shards, and exchanges shards with other formats. Read
`stage.py`."""
