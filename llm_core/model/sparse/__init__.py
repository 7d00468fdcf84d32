"""Attention to some of the earlier tokens: which (`patterns`), how many pairs that makes (`pairs`),
and how a CPU computes only the tiles with any (`tiles`)."""
