"""Tools for agents: what a model may be given to work with, safely."""
