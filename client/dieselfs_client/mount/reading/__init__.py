"""Names, attributes and bytes of a mount, for any kernel driver."""
