"""Checkpoints of a training run: `checkpoints` saves and loads, the other modules are its parts."""
