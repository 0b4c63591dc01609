"""Verification rules: which draft tokens are accepted, and which token follows them."""
