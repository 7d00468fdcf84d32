"""Generation with a key-value cache: the cache, sampling, and the engine that joins them to a
model."""
