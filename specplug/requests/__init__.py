"""Request fields: schema, parser, and the wire form in which they travel from the front end to the scheduler."""
