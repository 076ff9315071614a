"""The kernel IR: dtypes, resources, statements, and the few functions that walk and print them."""
