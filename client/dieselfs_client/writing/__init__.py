"""What is written through a mount, and how it is stored."""
