"""Keys and values of earlier tokens: who holds which block, how numbers are stored, and how they
are attended. Read static, blocks, paged, tiles, attention, rounding, rows."""
