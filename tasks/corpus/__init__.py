"""Document sets and what every stage shares about them: labels, tallies, URLs, score cuts,
statistics."""
