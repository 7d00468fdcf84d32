"""Lets workers of a parameter server train without waiting for each other. Begin with `worker`."""
