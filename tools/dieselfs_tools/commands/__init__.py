"""The verbs of dlcmd, one a module."""
