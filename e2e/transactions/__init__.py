"""Transactions of stock Java and Go clients over several brokers that are killed meanwhile."""
