"""Issues a simulated program's instructions to a real device, to test the machine model without a trace."""
