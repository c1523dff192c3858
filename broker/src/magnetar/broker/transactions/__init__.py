"""Transactions: coordinators, what topics hold back until these end them, acknowledgements that do not count before."""
