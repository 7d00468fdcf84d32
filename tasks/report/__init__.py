"""Writes the report page. Read `stage.py`, then `overview.py`; a section is a module of `sections/`
and a template, which `page.py` fills."""
