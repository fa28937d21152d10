"""The workers' processes: drafting and verification in both model runners."""
