"""What a mount does ahead of its readers: fetches, pushes and drops."""
