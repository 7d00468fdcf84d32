"""The language model, written as single-process code; parallelism is put around it elsewhere."""
