"""Runs that are going on: what they announce of themselves, where all of them stand, and their
pages in Prefect."""
