"""What a timeline means in numbers and pictures: breakdown, metrics, tables, plots."""
