"""Measurements of single stages, each a module that is run as a program and ends with a line of JSON."""
