"""Shares the weights of a model out over servers. Begin with `shares`."""
