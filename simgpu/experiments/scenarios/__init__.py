"""Loads and checks scenario, sweep and study files (YAML)."""
