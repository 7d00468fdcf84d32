"""Measures this machine's constants, from which the planner predicts. Begin with `calibrate`."""
