"""How the next token is chosen from logits. Read sampling, edits, choosing, streams, scores."""
