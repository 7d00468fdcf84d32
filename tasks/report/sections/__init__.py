"""Sections of the report: each module measures nothing, takes what stages measured, and gives its
template what to show. Begin with `documents.py` and `templates/documents.html`."""
