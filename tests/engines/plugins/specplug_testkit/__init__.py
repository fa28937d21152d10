"""Test only: proposers and a policy whose drafts a test knows beforehand, sound ones and broken ones.

Every one is set up by its options, so it behaves alike in whichever process an engine builds it.
"""
