"""Measurements of the data stages (`data`) and the engine (`engine`). Not installed: `make bench-*`
and `make truth` run them.
"""
