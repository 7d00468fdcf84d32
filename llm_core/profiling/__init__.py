"""Where does the time of a step go: recorded by torch, and told by kind of work."""
