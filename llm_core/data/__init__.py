"""Token shards and the loader: packing, order, mixture, prefetch. Read `loader.py`."""
