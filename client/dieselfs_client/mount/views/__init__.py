"""The view `image`: an EROFS image whose bytes the daemon serves."""
