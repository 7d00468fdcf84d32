"""Generation with a key-value cache: cache, sampling, and the engine that joins them."""
