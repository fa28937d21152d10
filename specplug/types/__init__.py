"""What flows through specplug, one module per idea.

`caps`, `request` and `plan` are host data and import no torch; `batch`, `draft` and `verdict` hold tensors.  All names
are also exported, lazily, by `specplug` itself.
"""
