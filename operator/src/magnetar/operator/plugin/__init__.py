"""`kubectl pulsar`: clusters as people see and steer them."""
