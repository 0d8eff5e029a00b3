"""The parts of `bench/run`: what is measured, how it is spread over processes, and how it is reported."""
