"""What compiled steps of proposers on the host are built of, until the last engine does without them."""
