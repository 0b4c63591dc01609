"""Measuring: taking turns, generating load, and streaming completions over HTTP."""
