"""Kernels on UTF-8 text: characters, units, scripts, edits, tables of interned units."""
