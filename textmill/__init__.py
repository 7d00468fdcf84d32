"""textmill: from raw text to a trained, evaluated and benchmarked language model.

The code stands in `flows`, `tasks` and `llm_core`. In a clone these are beside this package; in a
wheel they are inside it, in `tree`, so that no such common name is taken in site-packages.
`textmill.start` puts them on the path.
"""
