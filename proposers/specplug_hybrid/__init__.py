"""Lookup and a draft model together: each request gets the drafts that are worth more."""
