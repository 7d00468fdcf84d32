"""Hot loops over Arrow buffers."""
