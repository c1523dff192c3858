"""Processes whose wall clock jumps, whose disk stalls, and whose answers from ZooKeeper are lost."""
