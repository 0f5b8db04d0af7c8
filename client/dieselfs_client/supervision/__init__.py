"""The processes of a mount, and what keeps them alive."""
