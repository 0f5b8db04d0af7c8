"""The commands for users: `dlcmd` and the demonstration."""
