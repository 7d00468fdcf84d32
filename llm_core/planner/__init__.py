"""Arithmetic of FLOPs, memory and time on known devices."""
