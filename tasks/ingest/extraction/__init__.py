"""Extracts the text of files that are one document each: one module per format.

All of it runs in the sandbox (tasks.ingest.pagetext), whose table names them. Each `read` takes the
bytes, a hint of their encoding and a bound of what they may expand to, and gives a PageText; what
it cannot read is a BrokenPage, `unreadable KIND: …`.
"""
