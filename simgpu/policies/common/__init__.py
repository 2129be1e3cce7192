"""What several policies share."""
