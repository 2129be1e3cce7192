"""What the hardware does with a program over time: streams, engines, links and memories. The only user of SimPy."""
