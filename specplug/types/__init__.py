"""Data types that plug-ins and adapters exchange, one module per concept.

`caps`, `request` and `plan` are host data and import no torch; `batch`, `draft` and `verdict` hold tensors.  All names
are also exported lazily by `specplug` itself.
"""
