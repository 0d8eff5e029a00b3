"""The `strands-sglang` command line."""
