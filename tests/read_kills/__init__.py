"""The examples that pass entries on, killed at random moments: each entry must arrive once, and in order."""
