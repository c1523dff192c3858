"""The commands of `magnetar`, one module for each group: options, and what is printed. The work is done elsewhere."""
