"""The simulator of streams, engines, links and memories that executes programs. The only user of SimPy."""
