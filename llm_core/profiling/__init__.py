"""Records where the time of a step goes, and shows it by kind of work."""
