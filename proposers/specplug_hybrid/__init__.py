"""Lookup and a draft model together: each request gets the drafts that are worth more.

proposer   the proposer and its settings: which part drafts for which row
gains      what drafts of the model were worth, and what they cost
"""
