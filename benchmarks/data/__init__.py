"""Times the data stages and checks them against known truth. Each module is a program; its last
line is JSON."""
