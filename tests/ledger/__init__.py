"""A regular package, so that it takes precedence over other packages of this name."""
