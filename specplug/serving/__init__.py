"""What adapters of serving engines share: requests in slots, request fields on their way, the operator's control.

It knows no engine.  Adapters describe their requests as `Resident`s, and ask for the rest.
"""
