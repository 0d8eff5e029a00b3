"""Trainers: thin projections of finished episodes into what each trainer eats, one trainer a file.

Nothing is imported here: each trainer's room imports its own packages, and only when it is used.
"""
