"""Pods' control ports: what they are asked and told, and what is made of answers."""
