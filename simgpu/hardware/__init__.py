"""What a node is made of, read from configs/*.yaml."""
