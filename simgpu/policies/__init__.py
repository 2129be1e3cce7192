"""Memory policies: one file each, with its parameters, its decisions and its source."""
