"""Optimizers over the pieces of weights that a process holds, the guard that skips bad steps, and
their configs."""
