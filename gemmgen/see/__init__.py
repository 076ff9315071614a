"""What a kernel is and why, as data and as pages: nothing here is measured, and nothing is decided."""
