"""The two drivers that answer requests of the kernel."""
