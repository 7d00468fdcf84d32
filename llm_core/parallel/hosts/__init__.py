"""Exchanges between the processes of a run through its store of addresses: begin with `exchange`;
`liveness` names processes that are silent, `flight` says who is behind, `restarts` tells one start
of a run from the one before."""
