"""Times training steps, offload and training runs. Each module is a program; its last line is
JSON."""
