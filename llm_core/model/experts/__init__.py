"""Experts in place of a feed-forward."""
