"""Processes working on one model: their group, and the layouts put around single-process code."""
