"""Attention to some of the earlier tokens: which (`patterns`), and how many pairs that makes
(`pairs`)."""
