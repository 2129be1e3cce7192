"""Nodes (GPUs, memory, links, switches and host), read from configs/*.yaml."""
