"""The round as pure functions on arrays: draft, verify, accept; its types, cache and sampling."""
