"""Writes the documents that the judges kept, with edits and splits. Read `stage.py`, then
`edits.py`."""
