"""Fault simulation of the operator: its own reconcile loop in virtual time, on a fake API server and fake pods."""
