"""Brings published evaluation sets, and evaluates models with them. Start at `suite_data`."""
