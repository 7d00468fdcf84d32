"""Reads source files, local or remote, into documents. Read `stage.py`, `sources.py`,
`documentrows.py`."""
