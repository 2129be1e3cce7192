"""Plan, verify and run: `simulate`, its settings `RunConfig` and its `Result`."""
