"""Proofs by enumeration: what law a verification rule really has."""
