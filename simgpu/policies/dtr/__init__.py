"""`dtr`: dynamic tensor rematerialization."""
