"""What stands behind the commands for operators: reads a bookie's files and asks a cluster. Prints nothing."""
