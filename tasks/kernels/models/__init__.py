"""Kernels of classifiers and n-gram language models."""
