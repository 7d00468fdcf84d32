"""The engine: model, parallelism, training loop, checkpoints, inference, benchmarks."""
