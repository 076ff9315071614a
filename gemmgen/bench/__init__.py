"""Times kernels, ours and others', and what is read from the times: `gemmgen bench`, `tune`, `host`, `casts`, `do_bench`."""
