"""The only place with an API client."""
