"""Sums of gradients over processes in fewer bytes. Begin with `reduction`."""
