"""Fitting into memory: what is recomputed, cut into pieces, or kept elsewhere."""
