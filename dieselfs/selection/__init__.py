"""Values of files in columns, and the files that an expression over them selects."""
