"""Tensor parallelism over grids of processes: `shape` says which there are, `summa` and `cube`
multiply on them, `layers` and `shards` put a model on one."""
