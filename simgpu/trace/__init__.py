"""What was recorded: the values, the format on disk, importers, the recorder."""
