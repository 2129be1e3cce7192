"""SwapAdvisor: a genetic search for the order of operators and the allocation of memory, and Belady's swaps."""
