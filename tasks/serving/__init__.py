"""Serves a model over HTTP in OpenAI's form, with a page to chat in.

Read `server` (what is started), `endpoints` (what is answered), `requests` (what may be asked),
`worker` (the one thread that runs the engine), `answers` (from tokens to text), `replies` (the form
of answers), then `guards`, `metrics` and `failures`.
"""
