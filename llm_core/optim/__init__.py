"""Optimizers over a process's pieces of weights, and the guard that skips bad steps."""
