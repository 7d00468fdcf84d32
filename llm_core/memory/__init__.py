"""Fitting into memory: what is computed again, cut into pieces, or kept elsewhere. The answer stays
that of the plain run."""
