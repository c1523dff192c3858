"""The command line `magnetar`: starts processes and clusters, and looks after them."""
