"""Reads Parquet and Arrow files, after a look at the memory that they would take. Begin with
arrowtables.py."""
