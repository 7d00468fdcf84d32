"""Generates with a key-value cache: ids in, ids out.

Read `engine.py` (what a step does), then `scheduler.py` and `cache/blocks.py` (who computes what,
where), `cache/paged.py` (what is kept), `choice/` (which token comes next), `bursts.py` and
`decoders.py` (several steps at once), `equivalence.py` (why it is right).
"""
