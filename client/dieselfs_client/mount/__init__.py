"""The POSIX mount: `core`, `read_path` and `control_tree` make the replies, and the drivers send them to the kernel."""
