"""Background processes: how they are started, watched and stopped, and the folders of their files."""
