"""Audit of a speculating engine: its outputs are compared with those of the same engine without speculation.

`run` sends probes to the audited engine and then to the control, and each check judges what came back.  The core of the
audit knows no engine: `probe` has what drives the embedded engine, and `server` drives HTTP servers.
"""
