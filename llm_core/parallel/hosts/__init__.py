"""Exchanges between the processes of a run through its store of addresses: begin with `exchange`;
`restarts` tells one start of a run from the one before."""
