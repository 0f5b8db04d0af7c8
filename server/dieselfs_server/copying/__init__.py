"""Copies of files and folders inside the servers, within a dataset or to another one."""
