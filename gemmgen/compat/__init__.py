"""Other libraries' functions over gemmgen's kernels: their names, their keywords, their contracts.

A program changes one import. What gemmgen cannot do as they do raises, and names their argument.
"""
