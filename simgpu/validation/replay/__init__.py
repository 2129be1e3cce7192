"""Issuing a simulated program's instructions on a real device, to test the machine model apart from any trace."""
