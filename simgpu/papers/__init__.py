"""What papers claim, as numbers and rules, beside what comes out here."""
