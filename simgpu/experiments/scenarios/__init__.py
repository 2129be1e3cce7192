"""Studies as YAML: read, checked, and turned into objects."""
