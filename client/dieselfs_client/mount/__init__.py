"""The POSIX mount: `core` and `control_tree` know the answers, the drivers bring them to the kernel."""
