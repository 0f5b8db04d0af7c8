"""The processes of a mount, and their supervision."""
