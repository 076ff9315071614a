"""Does another revision compile to the same machine code?"""
