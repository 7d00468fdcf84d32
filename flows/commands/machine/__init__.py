"""Commands about this machine: `doctor` checks it, `calibrate` measures it for the planner."""
