"""What papers claim, as numbers and rules, next to what comes out here."""
