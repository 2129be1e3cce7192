"""Nodes (GPUs, memories, links, switches and host), read from configs/*.yaml."""
