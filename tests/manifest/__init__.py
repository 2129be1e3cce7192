"""What every shipped scenario, study, sweep and quick claim gives, as digests that renaming does not change."""
