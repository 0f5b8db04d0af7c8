"""The command line: options, output, progress, errors, completion."""
