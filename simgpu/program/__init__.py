"""What each stream does, as data: instructions, the lowering that writes them, and the check that guards a run."""
