"""Reads tables that Arrow knows, and looks first at what they would take. Begin with
arrowtables.py."""
