"""Forecast of the speed-up of speculation from acceptance and a step's cost; `specplug plan` prints it."""
