"""Kernels of deduplication: hashes, shingles, MinHash, banding, overlap."""
