"""SAPO for Quintain."""
