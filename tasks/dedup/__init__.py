"""Removes copies, near duplicates and repeated text.

Read `stage.py`, `signatures.py`, `clustering.py`, then `cuts.py`.
"""
