"""Nodes: GPU, memories, links, switches and host, read from configs/*.yaml."""
