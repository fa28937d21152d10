"""The policy `batch`: verifies a draft token if its expected gain exceeds its cost at the current batch size."""
