"""Holds what several test modules use: builders, oracles, stand-ins. Nothing here is a test."""
