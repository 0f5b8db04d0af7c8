"""Access to the sources of attached chunks: files and URLs that other programs have written."""
