"""Whatever is given, on the command line and in Python, is used or refused by name: drawn at random, never ignored."""
