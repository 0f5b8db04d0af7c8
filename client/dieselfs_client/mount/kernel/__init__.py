"""The FUSE protocol, and the page cache of the kernel."""
