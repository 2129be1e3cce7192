"""A reproduction as one self-contained HTML page."""
