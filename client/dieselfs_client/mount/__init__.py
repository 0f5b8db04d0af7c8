"""The POSIX mount: `core` answers from the snapshot, `kernel_protocol` puts answers into bytes, `kernel_driver` moves them."""
