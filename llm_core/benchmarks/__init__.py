"""Measurements of the engine, each a command."""
