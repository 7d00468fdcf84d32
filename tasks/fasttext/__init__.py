"""Reads fastText model files and checks them before the C++ loader sees them."""
