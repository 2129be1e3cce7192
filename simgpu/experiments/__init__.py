"""Many runs: policies side by side, and the files a run writes."""
