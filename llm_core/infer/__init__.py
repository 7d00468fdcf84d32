"""Generates with a key-value cache: ids in, ids out.

Read `engine.py` (what a step does), then `scheduler.py` and `blocks.py` (who computes what, where),
`paged.py` and `cache.py` (what is kept), `choosing.py` (which token comes next), `equivalence.py`
(why it is right).
"""
