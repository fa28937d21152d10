"""Request fields: their schema, their parser, and the form in which they travel from the front end to the scheduler."""
