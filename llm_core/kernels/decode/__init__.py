"""One decode step in one CUDA kernel. Read shapes, messages, products, attention, step; `step.py`
compiles and starts it."""
