"""Reads tables: Parquet and Arrow, after a look at the memory that they would take; shards of
MosaicML; databases and queries. Begin with arrowtables.py."""
