"""Measures how fast a trained model answers. `http_load` puts a server under load."""
