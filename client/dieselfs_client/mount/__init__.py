"""The POSIX mount: `core` knows the answers, `kernel_protocol` puts them into bytes, `kernel_driver` moves these."""
