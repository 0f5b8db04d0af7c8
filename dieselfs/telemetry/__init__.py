"""What processes count, and how others read it."""
