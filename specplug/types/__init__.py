"""Data types that plug-ins and adapters exchange.

Read `step` first: the five nouns of a step, of which `batch` and `draft` are the two large ones.  `plan` has what the
halves of a policy are given, `request` requests and events, `caps` what engines and plug-ins declare, `verification`
what verifiers take.  `paths` and `tensors` are operations.  All names are also exported lazily by `specplug` itself.
"""
