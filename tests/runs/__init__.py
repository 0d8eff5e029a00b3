"""A package, so that it is found before whatever else may have its name."""
