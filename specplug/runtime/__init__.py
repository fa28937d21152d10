"""What engine adapters keep while they serve: slots and running requests, stops, visible text, and plans of steps."""
