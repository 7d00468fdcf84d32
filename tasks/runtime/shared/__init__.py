"""A store of several machines: artifacts in a bucket, each copied to this machine when it is read.

Read `store.py` first, then `leases.py` and `bucket.py`.
"""
