"""The container engine: the only stage that talks to Docker."""
