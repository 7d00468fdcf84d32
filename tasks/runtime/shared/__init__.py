"""Shares a store among machines: artifacts in a bucket, each copied to this machine when read.

Read `store.py` first, then `leases.py` and `bucket.py`.
"""
