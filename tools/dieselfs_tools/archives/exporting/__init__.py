"""Writers of other formats, for `dlcmd export`."""
